'use strict';
// The tokens of markdown-it as elements. What it would write as HTML is never made.

const TASK = /^\[([ xX])\]\s+/;

/** One element for each block. */
function blockNodes(tokens) {
  const root = el('div');
  let top = root;
  const parents = [];
  tokens.forEach((token, i) => {
    if (token.nesting === 1) {
      parents.push(top);
      top = opened(token, top, tokens[i + 2]);
    } else if (token.nesting === -1) {
      top = parents.pop();
    } else {
      top.append(...(token.type === 'inline' ? inlineNodes(token.children) : [leafNode(token)]));
    }
  });
  return [...root.childNodes];
}

/** The element that a token opens, in its place; what it does not open stays as it is. */
function opened(token, parent, afterNext) {
  if (token.hidden) return parent; // the paragraph of a tight list
  const element = openedElement(token, afterNext);
  parent.append(token.type === 'table_open' ? el('div', { class: 'table-scroll', tabindex: '0', role: 'region', 'aria-label': 'Table' }, element) : element);
  return element;
}

function openedElement(token, afterNext) {
  switch (token.type) {
    case 'heading_open':
      // An answer stands below the page's own headings.
      return el(`h${Math.min(6, Number(token.tag[1]) + 2)}`);
    case 'ordered_list_open':
      return el('ol', { start: token.attrGet('start') });
    case 'list_item_open':
      return listItem(afterNext);
    case 'th_open':
    case 'td_open':
      return el(token.tag, { class: alignment(token) });
    case 'link_open':
      return linkElement(token.attrGet('href'));
    default:
      return el(token.tag);
  }
}

/** With a box where it begins with `[ ]`; `text` is the token that holds its first line. */
function listItem(text) {
  const [first] = (text?.type === 'inline' && text.children) || [];
  const task = first?.type === 'text' && TASK.exec(first.content);
  if (!task) return el('li');
  first.content = first.content.slice(task[0].length);
  const isDone = task[1] !== ' ';
  return el('li', { class: 'task' }, el('input', { type: 'checkbox', disabled: true, checked: isDone, 'aria-label': isDone ? 'Done' : 'Not done' }));
}

function alignment(token) {
  return `align-${/text-align:(\w+)/.exec(token.attrGet('style') ?? '')?.[1] ?? 'left'}`;
}

function linkElement(address) {
  return el('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' });
}

function leafNode(token) {
  switch (token.type) {
    case 'fence':
      return codeBlock(token.content, token.info.trim().split(/\s/)[0]);
    case 'code_block':
      return codeBlock(token.content, '');
    case 'hr':
      return el('hr');
    case 'formula':
      return formulaElement(token.content, token.meta.isDisplay);
    default:
      return document.createTextNode(token.content);
  }
}

function codeBlock(content, language) {
  const text = content.replace(/\n$/, '');
  const head = el('div', { class: 'code-head' }, el('span', {}, language), copyButton(() => text));
  return el('div', { class: 'code' }, head, el('pre', { tabindex: '0', role: 'region', 'aria-label': 'Code' }, codeWithColours(text, language)));
}

function inlineNodes(tokens) {
  const root = el('span');
  let top = root;
  for (const token of tokens) {
    if (token.nesting === 1) top = opened(token, top);
    else if (token.nesting === -1) top = top.parentNode;
    else top.append(inlineNode(token));
  }
  return [...root.childNodes];
}

function inlineNode(token) {
  switch (token.type) {
    case 'softbreak':
    case 'hardbreak':
      return el('br');
    case 'code_inline':
      return el('code', {}, token.content);
    case 'image': {
      // A picture from elsewhere would tell that place who reads this.
      const link = linkElement(token.attrGet('src'));
      link.append(token.content || token.attrGet('src'));
      return link;
    }
    default:
      return leafNode(token);
  }
}
