// Drops what does not fit on its page, then says what stands where: regions, lines, letters.
() => [...document.querySelectorAll('section')].map(section => {
  const home = section.getBoundingClientRect(), style = getComputedStyle(section)
  const bottom = home.bottom - parseFloat(style.paddingBottom), right = home.right
  for (const element of [...section.querySelectorAll('main > *, .columns > div > *')]) {
    if (element.className === 'columns') continue
    const box = element.getBoundingClientRect()
    if (box.bottom > bottom || box.right > right || element.scrollWidth > element.clientWidth + 1 && element.clientWidth) element.remove()
  }
  for (const edge of section.querySelectorAll('.edge')) if (edge.scrollWidth > edge.clientWidth) edge.remove()
  const context = document.createElement('canvas').getContext('2d'), faces = {}
  const face = element => {
    const s = getComputedStyle(element), font = `${s.fontStyle} ${s.fontWeight} ${s.fontSize} ${s.fontFamily}`
    if (!faces[font]) {
      context.font = font
      const tall = context.measureText('bdfhklt'), deep = context.measureText('gpqy')
      faces[font] = { up: tall.fontBoundingBoxAscent, down: tall.fontBoundingBoxDescent, size: parseFloat(s.fontSize),
        rise: tall.actualBoundingBoxAscent, fall: deep.actualBoundingBoxDescent }
    }
    return faces[font]
  }
  const lines = root => {
    const found = [], range = document.createRange(), walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
    let line = null, node
    while (node = walker.nextNode()) {
      const f = face(node.parentElement)
      for (let i = 0; i < node.length; i++) {
        range.setStart(node, i); range.setEnd(node, i + 1)
        const rect = range.getClientRects()[0], letter = node.data[i]
        if (!rect || !rect.width) { if (line && /\s/.test(letter)) line.text += ' '; continue }
        const baseline = (rect.top + rect.bottom - f.up - f.down) / 2 + f.up - home.top, x = rect.left - home.left
        if (!line || Math.abs(baseline - line.baseline) > f.size / 3 || x < line.end - f.size) {
          line = { text: '', baseline, start: x, end: x, middles: [], size: f.size, rise: 0, fall: 0 }
          found.push(line)
        }
        if (x - line.end > f.size / 4 && !/\s$/.test(line.text)) { line.text += ' '; line.middles.push((x + line.end) / 2) }
        while (line.middles.length < line.text.length) line.middles.push(x)
        line.text += letter === '\u00a0' ? ' ' : letter
        line.middles.push(x + rect.width / 2)
        if (letter.trim()) line.end = x + rect.width
        line.rise = Math.max(line.rise, f.rise); line.fall = Math.max(line.fall, f.fall)
      }
    }
    return found.filter(line => line.text.trim()).map(line => ({
      text: line.text, size: line.size, middles: line.middles.map((x, i, all) => Math.round(x) - (i ? Math.round(all[i - 1]) : 0)), y: line.baseline + (line.fall - line.rise) / 2,
      box: [line.start, line.baseline - line.rise, line.end, line.baseline + line.fall] }))
  }
  const enclose = boxes => [0, 1, 2, 3].map(i => Math[i < 2 ? 'min' : 'max'](...boxes.map(box => box[i])))
  const regions = [...section.querySelectorAll('[data-label]')].map(element => {
    const label = element.dataset.label, own = element.getBoundingClientRect()
    const around = [own.left - home.left, own.top - home.top, own.right - home.left, own.bottom - home.top]
    if (label === 'image') return { label, box: around, text: '', lines: [] }
    const found = lines(element)
    if (!found.length) return null
    let text = found.map(line => line.text.trimEnd()).join('\n'), box = enclose(found.map(line => line.box))
    if (label === 'table') {
      const cell = td => lines(td).map(line => line.text.trim()).join(' ')
      text = `<table>${[...element.rows].map(row => `<tr>${[...row.cells].map(td => `<td>${cell(td)}</td>`).join('')}</tr>`).join('')}</table>`
      if (element.className !== 'bare') box = around
    }
    if (label === 'title') text = `# ${text}`
    if (label === 'sub_title') text = `## ${text}`
    return { label, box, text, lines: found }
  }).filter(Boolean)
  return { width: home.width, height: home.height, body: parseFloat(style.fontSize), regions }
})
