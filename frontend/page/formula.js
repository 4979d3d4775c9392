'use strict';
// Formulas, set by KaTeX. It makes elements, not HTML, and may neither link nor load anything.

const MAX_FORMULA_LENGTH = 4_000; // characters; what is longer stays as it was written
const FORMULA_OPTIONS = { trust: false, strict: 'ignore', maxSize: 20, maxExpand: 500, output: 'html' };

/** The formula, or what was written until it is set, and where it cannot be. */
function formulaElement(tex, isDisplay) {
  const root = el('span', { class: isDisplay ? 'formula is-display' : 'formula', role: 'math', 'aria-label': tex }, el('code', {}, tex));
  if (tex.length > MAX_FORMULA_LENGTH) return root;
  if (window.katex) setFormula(root, tex, isDisplay);
  else loadFormulas().then(() => setFormula(root, tex, isDisplay), () => {});
  return root;
}

function setFormula(root, tex, displayMode) {
  const made = el('span');
  try {
    katex.render(tex, made, { ...FORMULA_OPTIONS, displayMode });
  } catch {
    return; // not TeX, or not yet
  }
  root.replaceChildren(...made.childNodes);
}

/** KaTeX, and its fonts: the page has no others. */
async function loadFormulas() {
  await loadLibrary('katex.min.js');
  if (document.fonts.size) return;
  for (const [file, address] of Object.entries(FORMULA_FONTS)) document.fonts.add(formulaFont(file, address));
}

/** Of a file as KaTeX names them: KaTeX_Main-BoldItalic.woff2. The browser loads those that are seen. */
function formulaFont(file, address) {
  const [family, face] = file.replace('.woff2', '').split('-');
  const weight = face.includes('Bold') ? 'bold' : 'normal';
  const style = face.includes('Italic') ? 'italic' : 'normal';
  return new FontFace(family, `url("${pageUrl(address)}")`, { weight, style, display: 'block' });
}
