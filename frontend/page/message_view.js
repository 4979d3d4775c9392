'use strict';
// One message of a conversation as it is seen, and what can be done with it.

class MessageView {
  /** `actions`: edit(index, text), regenerate(index), continueAnswer(index), fork(index, offset), showVersion(index, at),
   * showCode(index), sendResults(index, results).
   */
  constructor(message, index, actions) {
    this.message = message;
    this.index = index;
    this.actions = actions;
    this.body = el('div', { class: 'markdown' });
    this.extra = el('div', { class: 'message-extra' });
    this.foot = el('div', { class: 'message-foot' });
    this.element = el('article', { class: `message from-${message.role}`, 'aria-label': SPEAKERS[message.role] }, this.body, this.extra, this.foot);
    if (message.role === 'assistant') {
      this.reasoning = new ReasoningView();
      this.element.prepend(this.reasoning.element);
      this.markdown = new MarkdownView(this.body);
    } else {
      this.body.className = 'plain';
      if (message.role === 'tool') this.element.prepend(el('div', { class: 'speaker' }, icon('tool'), `Result of ${message.name ?? message.callId}`));
    }
    this.show();
  }

  /** As the message is now; `run` while it is being made, `isLast` of the conversation. */
  show(run = null, isLast = false) {
    const { message } = this;
    if (message.role !== 'assistant') {
      this.body.replaceChildren(...(message.pictures ?? []).map(pictureElement), message.content);
      this.foot.replaceChildren(...this.#userFoot());
      return;
    }
    this.reasoning.show(message.reasoning, Boolean(run) && !message.content);
    this.markdown.show(message.content);
    this.element.classList.toggle('is-running', Boolean(run));
    this.#showExtra(run, isLast);
    if (run) this.#showProgress(run);
    else this.foot.replaceChildren(this.#buttons(isLast), answerNumbersElement(message));
  }

  #showExtra(run, isLast) {
    const { message } = this;
    const parts = message.toolCalls.filter(Boolean).map((call) => toolCallElement(call, Boolean(run)));
    if (run && !run.waiting.isOver) parts.push(run.waiting.element);
    if (run?.isCut) parts.push(el('p', { class: 'notice' }, cutNote(message)));
    if (run?.isStalled) parts.push(el('p', { class: 'notice' }, stallNote(message.numbers.path?.at(-1))));
    if (message.state === 'failed') parts.push(el('p', { class: 'notice is-bad', role: 'alert' }, message.error));
    if (message.state === 'stopped') parts.push(el('p', { class: 'notice' }, 'Stopped.'));
    if (isLast && !run && message.toolCalls.length && message.state === 'done') parts.push(this.#resultForm());
    if (parts.length || this.extra.childNodes.length) this.extra.replaceChildren(...parts);
  }

  #showProgress({ answer }) {
    const rate = AnswerNumbers.rateOf(answer.numbers);
    const parts = [];
    if (answer.numbers.lastTokens) parts.push(chip(`${answer.numbers.lastTokens} tokens`));
    if (rate !== null) parts.push(chip(rateText(rate)));
    this.foot.replaceChildren(el('div', { class: 'numbers' }, parts, marksOf(answer)));
  }

  #userFoot() {
    const buttons = [copyButton(() => this.message.content, { isIcon: true })];
    if (this.message.role === 'user') buttons.unshift(iconButton('edit', 'Edit and send again', () => this.edit()));
    return [el('div', { class: 'message-buttons' }, this.#versions(), buttons)];
  }

  /** `< 1/2 >`, where there is more than one. */
  #versions() {
    const { versions } = this.message;
    if (!versions) return null;
    const { at, tails } = versions;
    const step = (name, label, to) => {
      const button = iconButton(name, label, () => this.actions.showVersion(this.index, to));
      button.disabled = !(to in tails);
      return button;
    };
    const place = el('span', { class: 'versions' }, `${at + 1}/${tails.length}`);
    return [step('previous', 'Previous version', at - 1), place, step('next', 'Next version', at + 1)];
  }

  #buttons(isLast) {
    const { message, index, actions } = this;
    const isPlain = message.content && !message.toolCalls.length;
    return el(
      'div',
      { class: 'message-buttons' },
      this.#versions(),
      copyButton(() => message.content, { isIcon: true }),
      iconButton('again', 'Regenerate', () => actions.regenerate(index)),
      isLast && isPlain && iconButton('continue', 'Continue', () => actions.continueAnswer(index)),
      isPlain && canFork(message) && iconButton('fork', 'Fork at a word', () => this.#chooseWord()),
      isPlain && iconButton('edit', 'Edit', () => this.edit()),
      iconButton('code', 'Copy as curl or Python', () => actions.showCode(index)),
    );
  }

  /** Puts an editor in place of the text. */
  edit() {
    const { message } = this;
    const isUser = message.role === 'user';
    const area = el('textarea', { class: 'editor', rows: 4, 'aria-label': 'Message' });
    area.value = message.content;
    const leave = () => {
      editor.remove();
      this.element.classList.remove('is-edited');
    };
    const save = () => {
      leave();
      this.actions.edit(this.index, area.value);
    };
    const editor = el(
      'div',
      {},
      area,
      el(
        'div',
        { class: 'dialog-buttons' },
        el('button', { type: 'button', onclick: leave }, 'Cancel'),
        el('button', { type: 'button', class: 'primary', onclick: save }, isUser ? 'Send again' : 'Save'),
      ),
    );
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') leave();
      else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.element.classList.add('is-edited');
    this.element.append(editor);
    area.style.height = `${Math.min(area.scrollHeight + 4, 400)}px`;
    area.focus();
  }

  /** Puts the text as it was written in place of the one that is shown. */
  #chooseWord() {
    const leave = () => {
      picker.element.remove();
      this.element.classList.remove('is-edited');
    };
    const choose = (offset) => {
      leave();
      this.actions.fork(this.index, offset);
    };
    const picker = new WordPicker(this.message.content, 'Choose a word: from there the answer is written anew. This one is kept.', { choose, leave });
    this.element.classList.add('is-edited');
    this.element.append(picker.element);
    picker.focus();
  }

  #resultForm() {
    const calls = this.message.toolCalls;
    const areas = calls.map((call) => el('textarea', { rows: 2, class: 'mono', placeholder: `what ${call.name} answered`, 'aria-label': `Result of ${call.name}` }));
    const form = el('form', { class: 'tool-results' }, areas, el('button', { class: 'primary' }, calls.length > 1 ? 'Send the results' : 'Send the result'));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.actions.sendResults(this.index, areas.map((area) => area.value));
    });
    return form;
  }
}

/** Whether its text is one piece of its stream's. */
function canFork({ rid, textStart, continues }) {
  return rid && Number.isInteger(textStart) && !continues;
}

const SPEAKERS = { user: 'You', assistant: 'Answer', tool: 'Result of a tool' };

/** What a model thinks before it answers: folded, and open while there is nothing else to see. */
class ReasoningView {
  constructor() {
    this.body = el('div', { class: 'markdown' });
    this.summary = el('summary');
    this.element = el('details', { class: 'reasoning', hidden: true }, this.summary, this.body);
    this.markdown = new MarkdownView(this.body);
    this.wasThinking = false;
  }

  show(text, isThinking) {
    this.element.hidden = !text;
    if (!text) return;
    this.markdown.show(text);
    this.summary.textContent = isThinking ? 'Thinking…' : 'Reasoning';
    if (isThinking !== this.wasThinking) this.element.open = isThinking;
    this.wasThinking = isThinking;
  }
}

/** What is true of a request while nobody answers: accepted, it is not lost. */
function cutNote({ rid }) {
  if (rid) return 'The connection was lost. The request is still running; reconnecting…';
  return `${SERVER_AWAY} Your message has not been accepted yet, and is sent again until it is. ${START_IT}`;
}

/** Of the last worker that had the request. */
function stallNote(hop) {
  if (hop?.left) return 'The worker is gone; the next one continues after the last token.';
  return 'No tokens for a moment. If the worker has died, another one takes over.';
}

function toolCallElement({ name, arguments: text }, isRunning) {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // it was cut, or is still being written
  }
  const head = el('summary', {}, icon('tool'), el('span', {}, 'Calls '), el('b', {}, name));
  return el('details', { class: 'tool-call', open: true }, head, el('pre', { 'aria-busy': isRunning }, codeWithColours(shown, 'json')));
}

function iconButton(name, label, onclick) {
  return el('button', { type: 'button', class: 'icon-button', 'aria-label': label, onclick }, icon(name));
}
