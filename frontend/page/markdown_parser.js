'use strict';
// Markdown as chat models write it, into plain objects. No HTML: it stays text.
//
// Blocks: {type: 'paragraph' | 'heading' | 'code' | 'quote' | 'list' | 'table' | 'rule', line, ...}.
// Inline: strings, and {type: 'code' | 'strong' | 'em' | 'strike' | 'link' | 'break', ...}.

const MAX_NESTING = 12; // of quotes and lists: deeper ones are text

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s{0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const TABBED_ITEM = /^ *\t\s*(?:[-*+]|\d{1,9}[.)])\s/; // its depth is told by tabs
const TASK = /^\[([ xX])\]\s+/;

class MarkdownParser {
  /** The blocks of a text, each with the number of its first line: text that is added changes the last one only. */
  static parse(text) {
    return new MarkdownParser(text.split('\n'), 0).#blocks();
  }

  constructor(lines, depth) {
    this.lines = lines.map((line) => (TABBED_ITEM.test(line) ? line.replaceAll('\t', '    ') : line));
    this.depth = depth;
    this.at = 0;
  }

  #blocks() {
    const blocks = [];
    while (this.at < this.lines.length) {
      const line = this.at;
      if (this.lines[line].trim()) blocks.push({ line, ...this.#block() });
      else this.at += 1;
    }
    return blocks;
  }

  #block() {
    const line = this.lines[this.at];
    const isDeep = this.depth >= MAX_NESTING;
    if (FENCE.test(line)) return this.#code(FENCE.exec(line));
    if (HEADING.test(line)) return this.#heading(HEADING.exec(line));
    if (RULE.test(line)) return this.#rule();
    if (QUOTE.test(line) && !isDeep) return this.#quote();
    if (ITEM.test(line) && !isDeep) return this.#list(ITEM.exec(line));
    if (this.#beginsTable()) return this.#table();
    return this.#paragraph();
  }

  #code([, indent, fence, info]) {
    const lines = [];
    let isClosed = false;
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      const closing = /^ {0,3}(`{3,}|~{3,})\s*$/.exec(line);
      if (closing && closing[1][0] === fence[0] && closing[1].length >= fence.length) {
        this.at += 1;
        isClosed = true;
        break;
      }
      lines.push(line.startsWith(indent) ? line.slice(indent.length) : line.trimStart());
    }
    return { type: 'code', language: info.trim().split(/\s/)[0], text: lines.join('\n'), isClosed };
  }

  #heading([, marks, text]) {
    this.at += 1;
    return { type: 'heading', level: marks.length, inline: parseInline(text) };
  }

  #rule() {
    this.at += 1;
    return { type: 'rule' };
  }

  #quote() {
    const lines = [];
    while (this.at < this.lines.length && this.lines[this.at].trim()) {
      const line = this.lines[this.at];
      if (!QUOTE.test(line) && this.#interrupts(line)) break;
      lines.push(line.replace(QUOTE, ''));
      this.at += 1;
    }
    return { type: 'quote', blocks: this.#nested(lines) };
  }

  #list([, , firstMark]) {
    const isOrdered = /\d/.test(firstMark);
    const kind = firstMark.at(-1);
    const list = { type: 'list', isOrdered, start: isOrdered ? parseInt(firstMark, 10) : 1, items: [] };
    while (this.at < this.lines.length) {
      const match = ITEM.exec(this.lines[this.at]);
      if (!match || match[2].at(-1) !== kind || RULE.test(this.lines[this.at])) break;
      list.items.push(this.#item(match));
    }
    return list;
  }

  #item([whole, indent, mark, space]) {
    const width = indent.length + mark.length + (space.length > 4 || !space ? 1 : space.length);
    const lines = [this.lines[this.at].slice(Math.min(width, whole.length))];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      const own = line.search(/\S/);
      if (own === -1) {
        const next = this.lines.slice(this.at).find((each) => each.trim());
        if (!next || (next.search(/\S/) < width && !ITEM.test(next))) break;
        lines.push('');
      } else if (own >= width || (own >= 2 && own > indent.length && ITEM.test(line.slice(own)))) {
        lines.push(line.slice(Math.min(own, width)));
      } else if (ITEM.test(line) || this.#interrupts(line) || lines.at(-1) === '') {
        break;
      } else {
        lines.push(line.trimStart()); // a lazy line of the paragraph
      }
    }
    const task = TASK.exec(lines[0]);
    if (task) lines[0] = lines[0].slice(task[0].length);
    return { isTask: Boolean(task), isDone: Boolean(task) && task[1] !== ' ', blocks: this.#nested(lines) };
  }

  #beginsTable() {
    const [head, rule] = [this.lines[this.at], this.lines[this.at + 1] ?? ''];
    return head.includes('|') && rule.includes('-') && TABLE_RULE.test(rule) && cellsOf(head).length === cellsOf(rule).length;
  }

  #table() {
    const head = cellsOf(this.lines[this.at]);
    const align = cellsOf(this.lines[this.at + 1]).map((cell) => {
      if (/^:-*:$/.test(cell)) return 'center';
      return cell.endsWith(':') ? 'right' : 'left';
    });
    const rows = [];
    for (this.at += 2; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      if (!line.trim() || !line.includes('|')) break;
      const cells = cellsOf(line);
      rows.push(head.map((_, i) => parseInline(cells[i] ?? '')));
    }
    return { type: 'table', align, head: head.map((cell) => parseInline(cell)), rows };
  }

  #paragraph() {
    const lines = [this.lines[this.at].trim()];
    for (this.at += 1; this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      if (!line.trim() || this.#interrupts(line) || ITEM.test(line) || this.#beginsTable()) break;
      lines.push(line.trim());
    }
    return { type: 'paragraph', inline: parseInline(lines.join('\n')) };
  }

  #interrupts(line) {
    return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
  }

  #nested(lines) {
    return new MarkdownParser(lines, this.depth + 1).#blocks();
  }
}

/** The cells of a table's line; `\|` is no border. */
function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '');
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

/** An address that a click may open; null for all others. */
function safeAddress(address) {
  try {
    return ['http:', 'https:', 'mailto:'].includes(new URL(address).protocol) ? address : null;
  } catch {
    return null;
  }
}

const SPECIAL = /[\\`![<*_~\n]|https?:\/\//g;
const CODE = /(`+)(?!`)([^]*?[^`])\1(?!`)/y;
const LINK = /!?\[((?:[^\][\\]|\\.|\[[^\][]*\])*)\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+["'(][^"')]*["')])?\s*\)/y;

// What may begin with a character: patterns, each with what it makes of its match.
const INLINE = {
  '\\': [[/\\([!-/:-@[-`{-~])/y, (match) => match[1]]],
  '`': [[CODE, (match) => ({ type: 'code', text: match[2].replace(/^ (.*\S.*) $/s, '$1').replaceAll('\n', ' ') })]],
  '!': [[LINK, linkOf]],
  '[': [[LINK, linkOf]],
  '<': [[/<((?:https?:\/\/|mailto:)[^\s<>]+)>/y, (match) => addressOf(match[1])]],
  h: [[/https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_~]/y, (match) => addressOf(match[0])]],
  '*': [
    [/\*\*(?=\S)([^]*?\S)\*\*(?!\*)/y, marked('strong')],
    [/\*(?=[^\s*])((?:[^*]|\*\*[^*]+\*\*)*?[^\s*])\*(?!\*)/y, marked('em')],
  ],
  _: [
    [/__(?=\S)([^]*?\S)__(?![\w_])/y, marked('strong')],
    [/_(?=[^\s_])([^]*?[^\s_])_(?!\w)/y, marked('em')],
  ],
  '~': [[/~~(?=\S)([^]*?\S)~~/y, marked('strike')]],
  '\n': [[/\n/y, () => ({ type: 'break' })]],
};

function marked(type) {
  return (match, depth) => ({ type, inline: parseInline(match[1], depth) });
}

function linkOf(match, depth) {
  const address = safeAddress(match[2]);
  return address ? { type: 'link', address, inline: parseInline(match[1], depth) } : match[0];
}

function addressOf(text) {
  const address = safeAddress(text);
  return address ? { type: 'link', address, inline: [text] } : text;
}

/** The inline parts of a text, adjacent strings joined. */
function parseInline(text, depth = 0) {
  const parts = [];
  let at = 0;
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = depth < MAX_NESTING ? (SPECIAL.exec(text)?.index ?? text.length) : text.length;
    if (next > at) addPart(parts, text.slice(at, next));
    if (next === text.length) break;
    const [part, length] = inlineAt(text, next, depth + 1);
    addPart(parts, part);
    at = next + length;
  }
  return parts;
}

function addPart(parts, part) {
  const last = parts.length - 1;
  if (part.type === 'break' && typeof parts[last] === 'string') parts[last] = parts[last].trimEnd();
  if (typeof part === 'string' && typeof parts[last] === 'string') parts[last] += part;
  else parts.push(part);
}

/** What begins at a special character, and its length: the character itself where nothing does. */
function inlineAt(text, at, depth) {
  const first = text[at];
  const isInWord = (first === '_' || first === 'h') && at > 0 && /\w/.test(text[at - 1]);
  for (const [pattern, make] of isInWord ? [] : INLINE[first]) {
    pattern.lastIndex = at;
    const match = pattern.exec(text);
    if (match) return [make(match, depth), match[0].length];
  }
  return [first, 1];
}
