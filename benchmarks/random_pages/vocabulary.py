"""The words that pages are made of."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\n", "").split("|"))


COMMON = _words(
    """
the of and to in is for on that with as are be this from by an at or it was not which can have has
will page total report table figure section invoice order date name price amount number quantity
item model time memory kernel layer token image vision text value result method data training step
loss rate speed cost unit test line column row chapter summary annual revenue income tax balance
account customer address street city country phone email contact office manager company group
service product market growth quarter year month week day north south east west high low small
large new old first second third final open close start end left right top bottom red green blue
black white water energy power heat light field force mass system network server client cache
buffer thread process graph node edge matrix vector scale norm mean error noise signal sample
window filter design paper study author journal volume issue review note list index key code file
path user class object state event queue stack block chain proof under over between after before
while until since because however therefore where when what who how many few more less most least
each every other another same different about above across act action active actual add advance
advice affect again against age agency agree ahead air all allow almost alone along already also
although always among ancient angle animal answer any appear apple apply area argue arm army around
arrive art article ask assume attack attempt attention audience autumn average avoid away baby back
bag bakery ball band bank bar barely base basic basket battle beach bean bear beat beautiful become
bed begin behind
"""
)

#: Half of any English text is a few dozen such words.
SHORT = _words("the of and to a in is it for that was on with as at by I be are from or this")

FIRST_NAMES = _words(
    """
Anna Ben Clara David Elena Felix Grace Hugo Ines Jonas Karin Leo Maria Nils Olga Paul Rosa Simon
Tara Umar Vera Will Yuki Zoe José André Zoë Björn Jürgen Søren Åsa Renée François Iñigo Noël Márta
Lucía Günther
"""
)
LAST_NAMES = _words(
    """
Lind Moreau Smith Okafor Becker Rossi Tanaka Silva Novak Weber Jensen Garcia Petrov Kumar Chen
Dubois Haas Murphy Larsen Costa Müller Schäfer Peña Núñez Gómez Lefèvre Bäcker Köhler Sørensen
Ångström Groß Benoît Muñoz Älvsborg
"""
)
PLACES = _words(
    """
Bergen Lyon Porto Leeds Ghent Turin Graz Cork Oslo Riga Bonn Tours Bilbao Zürich Málaga Orléans
Düsseldorf Århus Boston Austin Denver Kyoto Lagos Quito Perth Delhi
"""
)
HEADINGS = _phrases(
    """
Introduction|Method|Results|Discussion|Conclusion|Background|Summary|Overview|Data|Setup|Analysis|
Outlook|Scope|Findings|Next steps|Open questions|Related work|Materials|Budget|Timeline|Risks|
Terms|Delivery|Payment|Contact|Our approach|Key figures|Abstract|Appendix|References|Main points|
Safety|History|Installation|Maintenance
"""
)
FIELDS = _phrases(
    """
Name|Date|Company|Address|Phone|Order no.|Invoice|Customer|Due date|Amount|Reference|Room|Badge|
Country|City|Status|Total|Position|Department|Account|Tax ID|Weight|Size|Colour|Model|Serial no.|
Issued|Valid until|Signed by|E-mail|Time
"""
)
GOODS = _phrases(
    """
Paper|Ink|Binding|Espresso|Tea|Porridge|Juice|Bread|Butter|Cheese|Apples|Milk|Sugar|Coffee|Salad|
Soup|Water|Pencil|Notebook|Stapler|Cable|Lamp|Chair|Desk|Screen|Mouse|Printer|Toner|Battery|
Adapter|Envelope|Folder|Scissors|Glue|Tape|Marker|Keyboard|Crêpe|Café|Rösti|Jalapeño|Soufflé|
Olives|Pasta|Rice|Flour|Honey|Oranges|Service|Repair|Delivery
"""
)
COLUMNS = _words(
    """
Item Qty Price Amount Name Year Value Mean Count Rate Size Type Code Unit Total Share Rank Time
Model Score
"""
)
