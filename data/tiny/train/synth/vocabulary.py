"""The words that pages are made of."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\n", "").split("|"))


COMMON = _words(
    """
the of and to in is for on that with as are be this from by an at or it was not which can have has will
page total report table figure section invoice order date name price amount number quantity item model
time memory kernel layer token image vision text value result method data training step loss rate speed
cost unit test line column row chapter summary annual revenue income tax balance account customer address
street city country phone email contact office manager company group service product market growth quarter
year month week day north south east west high low small large new old first second third final open close
start end left right top bottom red green blue black white water energy power heat light field force mass
system network server client cache buffer thread process graph node edge matrix vector scale norm mean
error noise signal sample window filter design paper study author journal volume issue review note list
index key code file path user class object state event queue stack block chain proof under over between
after before while until since because however therefore where when what who how many few more less most
least each every other another same different about above across act action active actual add advance
advice affect again against age agency agree ahead air all allow almost alone along already also although
always among ancient angle animal answer any appear apple apply area argue arm army around arrive art
article ask assume attack attempt attention audience autumn average avoid away baby back bag bakery ball
band bank bar barely base basic basket battle beach bean bear beat beautiful become bed begin behind
believe bell belong below bench benefit beside best better beyond big bill bird birth bit bite blame blood
blow board boat body bone book border born borrow both bottle bowl box boy branch bread break breakfast
breath bridge brief bright bring broad brother brown brush budget build bureau burn bus business busy
butter button buy cabin cable cake call calm camera camp candle capital captain car carbon card care carry
case cash castle catch cause ceiling cell center central century certain chair challenge chance change
charge cheap check cheese chest chicken chief child choice choose church circle citizen claim clean clear
clever climb clinic clock cloth cloud coach coal coast coat coffee cold collect college colour come
comfort common compare complete concept concern condition confirm connect consider contain content context
control cook cool copper copy corner correct cotton could council count couple courage course court cover
craft create credit crew crime crisis critic crop cross crowd crown cup curious current curve custom cut
cycle daily damage dance danger dark daughter dead deal debate debt decade decide deep defence degree
delay deliver demand deny depend depth describe desert deserve desk detail develop device diet differ
difficult dinner direct discover discuss disease dish distance district divide doctor document dog dollar
door double doubt down draft drama draw dream dress drink drive drop dry during dust duty eager early earn
earth ease easy eat economy editor educate effect effort egg eight either elect element eleven else emerge
employ empty enable enemy engine enjoy enough ensure enter entire equal escape essay estate even evening
ever evidence exact example except exchange exist expand expect expert explain express extend extra eye
face fact factor factory fail fair faith fall false family famous farm farmer fashion fast father fault
favour fear feature feed feel fellow fence festival fever fight fill film find fine finger finish fire
firm fish fit five fix flag flame flat flight float floor flour flow flower fly focus follow food foot
foreign forest forget form formal former forward found four fragile frame free freedom fresh friend front
fruit fuel full fun function fund future gain gallery game gap garden gas gate gather general gentle gift
girl give glad glass global goal gold good government grain grand grass great grey ground grow guard guess
guest guide habit half hall hand handle happen happy harbour hard harvest hat head health hear heart heavy
height hello help hence here hero hide hill hire history hold hole holiday home honest hope horse hospital
hotel hour house huge human humble hundred hungry hunt hurry husband ice idea identify ignore imagine
impact import improve inch include indeed indicate industry infant inform injury inner insect inside
insist inspect instead interest into invest invite iron island jacket job join joint joke journey joy
judge juice jump jury just justice keen keep kind king kitchen knee knife knock know labour lack ladder
lady lake lamp land language last late laugh launch law lawyer lead leader leaf league learn leather leave
lecture legal lemon length lesson let letter level liberal library licence lift like limit link lion lip
liquid listen little live local lock logic long look lose loud love loyal luck lunch machine magic mail
main major make male manage manner map march mark marriage master match material matter maybe meal measure
meat medal media medical meet melt member mental mention menu merchant message metal middle might mile
milk mill mind mine minister minor minute mirror miss mistake mix mobile modern moment money monitor mood
moon moral morning mother motion motor mount mountain mouse mouth move movie much mud museum music must
mystery nail narrow nation native nature near neat neck need needle neighbour neither nerve nest never
news next nice night nine noble nobody none noon normal nose nothing notice novel now nuclear nurse oak
obey observe obtain obvious occasion occur ocean off offer officer often oil once one onion only opera
opinion oppose option orange orchard origin ought ounce our outcome outside oven overall owe own owner
oxygen pack pain paint pair palace pale pan panel parcel parent park part partner party pass past patient
pattern pause pay peace pen pencil people pepper percent perfect perform perhaps period permit person
phase photo phrase piano pick picture piece pilot pink pipe pitch place plain plan plane planet plant
plastic plate play player please plenty pocket poem poet point police policy polite pool poor popular port
position possible post pot potato pound practice praise prepare present press pretty prevent pride print
prison private prize probe problem produce profit program project promise proper protect proud prove
provide public pull pump pupil purchase pure purple purpose push put quality queen question quick quiet
quite radio rail rain raise range rapid rare rather reach react read ready real reason recall receive
recent recipe record reduce refer reform refuse region regret regular reject relate release rely remain
remember remote remove rent repair repeat replace reply request rescue research reserve resist resource
respect respond rest return reveal rice rich ride ring rise risk river road rock role roof room root rope
rose rough round route royal rubber rule run rural rush sad safe sail salad salary sale salt sand satisfy
save say scene school science score screen sea search season seat secret secure see seed seem select self
sell senate send senior sense sentence separate series serious serve settle seven several shade shadow
shake shall shape share sharp she sheep sheet shelf shell shelter shift shine ship shirt shock shoe shoot
shop shore short should shoulder shout show shower shut sick side sight sign silent silk silver similar
simple sing single sink sister sit site six size skill skin skirt sky sleep slice slide slight slow smart
smell smile smoke smooth snow soap social soft soil soldier solid solve some son song soon sort soul sound
soup source space spare speak special spell spend spirit spoon sport spot spread spring square stable
staff stage stair stamp stand standard star station stay steady steal steam steel stick still stone
storage store storm story straight strange stream strength stress stretch strict strike string strong
structure student studio stuff style subject submit succeed such sudden suffer sugar suggest suit summer
sun supply support sure surface surprise surround survey sweet swim switch symbol tail take tale talent
talk tall tank target task taste teach team tear tell ten tend tent term territory than thank theatre
their them theme then theory there thick thin thing think those though thought thousand threat three
throat through throw thus ticket tide tie tight tiger tin tiny title today together tomorrow tone tongue
tonight too tool tooth topic touch tough tour toward towel tower town toy track trade traffic trail train
transfer travel treat tree trend trial tribe trick trip trouble truck true trust truth try tube tune turn
twelve twenty twice twin two type ugly uncle understand union unique unite unless unlikely up upon upper
upset urban urge use useful usual vacation valid valley van various vast vegetable vehicle venture verb
very vessel victory video view village violin visit visual vital voice vote voyage wage wait wake walk
wall want war warm warn wash waste watch wave way weak wealth weapon wear weather wedding weigh welcome
well wheat wheel whether whole whose why wide wife wild win wind wine wing winner winter wire wise wish
within without witness woman wonder wood wool word work worker world worry worth would wound wrap write
wrong yard yellow yes yesterday yet yield you young your youth zero zone
"""
)

#: Half of any English text is a few dozen such words.
SHORT = _words("the of and to a in is it for that was on with as at by I be are from or this")

FIRST_NAMES = _words(
    """
Anna Ben Clara David Elena Felix Grace Hugo Ines Jonas Karin Leo Maria Nils Olga Paul Rosa Simon Tara Umar
Vera Will Yuki Zoe José André Zoë Björn Jürgen Søren Åsa Renée François Iñigo Noël Márta Lucía Günther
"""
)
LAST_NAMES = _words(
    """
Lind Moreau Smith Okafor Becker Rossi Tanaka Silva Novak Weber Jensen Garcia Petrov Kumar Chen Dubois Haas
Murphy Larsen Costa Müller Schäfer Peña Núñez Gómez Lefèvre Bäcker Köhler Sørensen Ångström Groß Benoît
Muñoz Älvsborg
"""
)
PLACES = _words(
    """
Bergen Lyon Porto Leeds Ghent Turin Graz Cork Oslo Riga Bonn Tours Bilbao Zürich Málaga Orléans Düsseldorf
Århus Boston Austin Denver Kyoto Lagos Quito Perth Delhi
"""
)
HEADINGS = _phrases(
    """
Introduction|Method|Results|Discussion|Conclusion|Background|Summary|Overview|Data|Setup|Analysis|
Outlook|Scope|Findings|Next steps|Open questions|Related work|Materials|Budget|Timeline|Risks|Terms|
Delivery|Payment|Contact|Our approach|Key figures|Abstract|Appendix|References|Main points|Safety|
History|Installation|Maintenance
"""
)
FIELDS = _phrases(
    """
Name|Date|Company|Address|Phone|Order no.|Invoice|Customer|Due date|Amount|Reference|Room|Badge|Country|
City|Status|Total|Position|Department|Account|Tax ID|Weight|Size|Colour|Model|Serial no.|Issued|
Valid until|Signed by|E-mail|Time
"""
)
GOODS = _phrases(
    """
Paper|Ink|Binding|Espresso|Tea|Porridge|Juice|Bread|Butter|Cheese|Apples|Milk|Sugar|Coffee|Salad|Soup|
Water|Pencil|Notebook|Stapler|Cable|Lamp|Chair|Desk|Screen|Mouse|Printer|Toner|Battery|Adapter|Envelope|
Folder|Scissors|Glue|Tape|Marker|Keyboard|Crêpe|Café|Rösti|Jalapeño|Soufflé|Olives|Pasta|Rice|Flour|
Honey|Oranges|Service|Repair|Delivery
"""
)
COLUMNS = _words(
    """
Item Qty Price Amount Name Year Value Mean Count Rate Size Type Code Unit Total Share Rank Time Model
Score
"""
)
