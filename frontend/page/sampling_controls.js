'use strict';
// The fields that say how tokens are chosen. What is left empty is the model's own default.

const SAMPLING_FIELDS = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.05, hint: '0 is always the likeliest token' },
  { name: 'max_tokens', label: 'Max tokens', min: 1, step: 1, hint: 'output tokens at most' },
  { name: 'top_p', label: 'Top p', min: 0.01, max: 1, step: 0.01, hint: 'the likeliest tokens that make up so much' },
  { name: 'top_k', label: 'Top k', min: 0, step: 1, hint: 'so many likeliest tokens; 0 is all' },
  { name: 'min_p', label: 'Min p', min: 0, max: 1, step: 0.01, hint: 'relative to the likeliest token' },
  { name: 'seed', label: 'Seed', step: 1, hint: 'the same seed makes the same answer' },
  { name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 0.1, hint: 'of tokens that were there' },
  { name: 'frequency_penalty', label: 'Frequency penalty', min: -2, max: 2, step: 0.1, hint: 'of tokens, for each time' },
  { name: 'repetition_penalty', label: 'Repetition penalty', min: 0.05, max: 10, step: 0.05, hint: '1 is none' },
];

class SamplingControls {
  /** `prefix` keeps ids apart; `withChat`: fields that only chats have; `onChange`: the user changed something. */
  constructor(root, prefix, { withChat, onChange }) {
    this.prefix = prefix;
    this.inputs = {};
    this.onChange = onChange;
    if (withChat) root.append(this.#box('system', 'System prompt', { rows: 3, placeholder: 'How the model is to behave' }));
    root.append(el('div', { class: 'field-grid' }, SAMPLING_FIELDS.map((field) => this.#number(field))));
    root.append(this.#box('stop', 'Stop texts', { rows: 2, placeholder: 'one a line; \\n is a line end' }));
    root.append(this.#box('schema', 'JSON schema of the answer', { rows: 4, isJson: true, placeholder: '{"type": "object", "properties": {…}}' }));
    if (withChat) this.#addChatFields(root);
    root.append(this.#box('more', 'More fields (JSON)', { rows: 2, isJson: true, placeholder: '{"ignore_eos": true}' }));
  }

  #addChatFields(root) {
    root.append(this.#box('tools', 'Tools (JSON)', { rows: 4, isJson: true, placeholder: '[{"type": "function", "function": {"name": "…", "parameters": {…}}}]' }));
    const efforts = ['', 'none', 'low', 'medium', 'high'].map((value) => el('option', { value }, value || 'the model’s default'));
    root.append(this.#field('reasoning_effort', 'Reasoning', el('select', {}, efforts)));
  }

  /** What the user entered, by name. */
  get values() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value]).filter(([, value]) => value !== ''));
  }

  set values(values) {
    for (const [name, input] of Object.entries(this.inputs)) {
      input.value = values[name] ?? '';
      this.#check(input);
    }
  }

  /** The first field that cannot be sent, or null; the user is taken there. */
  findProblem() {
    const wrong = Object.values(this.inputs).find((input) => !this.#check(input));
    wrong?.focus();
    return wrong ? wrong.validationMessage : null;
  }

  #number({ name, label, hint, ...limits }) {
    const input = el('input', { type: 'number', inputmode: 'decimal', placeholder: 'default', title: hint, ...limits, step: 'any' });
    if (limits.step === 1) input.step = 1;
    return this.#field(name, label, input);
  }

  #box(name, label, { isJson = false, ...attributes }) {
    return this.#field(name, label, el('textarea', { spellcheck: 'false', class: isJson ? 'mono' : null, 'data-json': isJson, ...attributes }));
  }

  #field(name, label, input) {
    input.id = `${this.prefix}-${name}`;
    this.inputs[name] = input;
    const note = el('span', { class: 'field-error', id: `${input.id}-error` });
    input.setAttribute('aria-describedby', note.id);
    input.addEventListener('input', () => {
      this.#check(input);
      this.onChange();
    });
    return el('div', { class: 'field' }, el('label', { for: input.id }, label), input, note);
  }

  #check(input) {
    input.setCustomValidity('');
    if ('json' in input.dataset && input.value.trim()) {
      try {
        JSON.parse(input.value);
      } catch (error) {
        input.setCustomValidity(`Not JSON: ${error.message}`);
      }
    }
    input.setAttribute('aria-invalid', !input.validity.valid);
    byId(input.getAttribute('aria-describedby'))?.replaceChildren(input.validationMessage);
    return input.validity.valid;
  }
}

/** The fields of a request body that the values stand for. */
function samplingBody(values) {
  const body = {};
  for (const { name } of SAMPLING_FIELDS) if (values[name]) body[name] = Number(values[name]);
  const stops = (values.stop ?? '').split('\n').filter(Boolean).map((text) => text.replaceAll('\\n', '\n').replaceAll('\\t', '\t'));
  if (stops.length) body.stop = stops;
  if (values.schema?.trim()) {
    body.response_format = { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema: JSON.parse(values.schema) } };
  }
  if (values.tools?.trim()) body.tools = JSON.parse(values.tools);
  if (values.reasoning_effort) body.reasoning_effort = values.reasoning_effort;
  return { ...body, ...(values.more?.trim() ? JSON.parse(values.more) : {}) };
}
