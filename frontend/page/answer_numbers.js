'use strict';
// What an answer cost and how fast it came, from token times and the service's own counts.

class AnswerNumbers {
  /** `numbers`: a plain object that is kept with the answer. */
  constructor(numbers) {
    this.numbers = numbers;
  }

  sent() {
    Object.assign(this.numbers, { sentAt: Date.now(), firstAt: null, firstTokens: 0, lastAt: null, lastTokens: 0, numResumes: 0 });
  }

  /** Text came, made of so many tokens by now. */
  heard(numTokens) {
    const now = Date.now();
    const { numbers } = this;
    if (!numbers.firstAt) Object.assign(numbers, { firstAt: now, firstTokens: numTokens });
    if (numTokens > (numbers.lastTokens ?? 0)) Object.assign(numbers, { lastAt: now, lastTokens: numTokens });
  }

  counted(usage) {
    Object.assign(this.numbers, {
      promptTokens: usage.prompt_tokens,
      outputTokens: usage.completion_tokens,
      cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      reasoningTokens: usage.completion_tokens_details?.reasoning_tokens ?? 0,
    });
  }

  /** Output tokens a second behind the first ones; null: there were too few to tell. */
  static rateOf({ firstAt, lastAt, firstTokens, lastTokens }) {
    const seconds = (lastAt - firstAt) / 1000;
    return firstAt && seconds > 0 && lastTokens > firstTokens ? (lastTokens - firstTokens) / seconds : null;
  }
}

/** What is shown below an answer. */
function numbersShown(answer) {
  const { numbers } = answer;
  const shown = [];
  if (numbers.firstAt) shown.push(`first token ${duration(numbers.firstAt - numbers.sentAt)}`);
  const rate = AnswerNumbers.rateOf(numbers);
  if (rate !== null) shown.push(rateText(rate));
  if (numbers.promptTokens !== undefined) {
    const cached = numbers.cachedTokens ? ` (${numbers.cachedTokens} cached)` : '';
    shown.push(`${numbers.promptTokens}${cached} tokens in`);
    const thought = numbers.reasoningTokens ? ` (${numbers.reasoningTokens} reasoning)` : '';
    shown.push(`${numbers.outputTokens}${thought} out`);
  }
  if (answer.finishReason) shown.push(`finish reason: ${answer.finishReason}`);
  return shown;
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

/** All that is known of an answer, as small print. */
function answerNumbersElement(answer) {
  const parts = numbersShown(answer).map((text) => chip(text));
  if (answer.rid) {
    const id = el('button', { type: 'button', class: 'chip is-button', 'aria-label': `id ${answer.rid}, copy`, onclick: () => copyId(answer.rid) }, `id ${answer.rid.slice(0, 8)}`);
    parts.push(id);
  }
  return el('div', { class: 'numbers' }, parts, marksOf(answer));
}

/** Asks which workers it came from. Returns whether that is known. */
async function notePath(api, answer) {
  if (!answer.rid) return false;
  try {
    const { paths } = await api.json(`v1/streams/${answer.rid}/path`);
    answer.numbers.path = paths[0].map(({ worker, left }) => ({ worker, left }));
    return true;
  } catch {
    return false; // it is too old, or nobody can tell now
  }
}

/** Who made it, and what happened to it without a trace in the text. */
function marksOf({ numbers: { path = [], numResumes = 0 } }) {
  const marks = [];
  if (path.length) {
    const stays = path.map(({ worker, left }, place) => (left && path[place + 1] ? `${shortWorker(worker)} (${LEFT_BECAUSE[left] ?? left})` : shortWorker(worker)));
    marks.push(chip(`worker ${stays.join(' → ')}`, 'is-worker'));
  }
  if (numResumes) marks.push(chip(numResumes > 1 ? `resumed ${numResumes}×` : 'resumed', 'is-good'));
  return marks;
}

function rateText(rate) {
  return `${rate.toFixed(rate < 100 ? 1 : 0)} tok/s`;
}

function chip(text, kind = null) {
  return el('span', { class: kind ? `chip ${kind}` : 'chip' }, text);
}

/** Ids of workers are long; their ends tell them apart. */
function shortWorker(worker) {
  return worker.replace(/^worker-/, '').slice(0, 8);
}
