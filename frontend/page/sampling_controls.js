'use strict';
// The fields that say how tokens are chosen. What is left empty is the model's own default.

const SAMPLING_FIELDS = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 2, step: 0.05, hint: 'Higher varies more; 0 picks the likeliest token' },
  { name: 'max_tokens', label: 'Max tokens', min: 1, step: 1, hint: 'The longest the answer may be' },
  { name: 'top_p', label: 'Top p', min: 0.01, max: 1, step: 0.01, hint: 'Only the likeliest tokens, up to this total probability' },
  { name: 'top_k', label: 'Top k', min: 0, step: 1, hint: 'Only this many of the likeliest tokens; 0: no limit' },
  { name: 'min_p', label: 'Min p', min: 0, max: 1, step: 0.01, hint: 'No token below this share of the likeliest one' },
  { name: 'seed', label: 'Seed', step: 1, hint: 'Same seed, same answer' },
  { name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 0.1, hint: 'Discourages tokens already used' },
  { name: 'frequency_penalty', label: 'Frequency penalty', min: -2, max: 2, step: 0.1, hint: 'Discourages tokens more each time they are used' },
  { name: 'repetition_penalty', label: 'Repetition penalty', min: 0.05, max: 10, step: 0.05, hint: 'Above 1 discourages repetition' },
];
// What each sets of these fields; the others it leaves alone.
const PRESET_FIELDS = ['temperature', 'top_p', 'top_k', 'min_p'];
const PRESETS = [
  { label: 'Default', values: {} },
  { label: 'Precise', values: { temperature: '0.2', top_p: '0.9' } },
  { label: 'Creative', values: { temperature: '1.1', min_p: '0.05' } },
];

class SamplingControls {
  /** `prefix` keeps ids apart; `withChat`: fields that only chats have; `onChange`: the user changed something. */
  constructor(root, prefix, { withChat, onChange }) {
    this.prefix = prefix;
    this.inputs = {};
    this.onChange = onChange;
    if (withChat) root.append(this.#box('system', 'System prompt', { rows: 3, placeholder: 'How the model should behave' }));
    root.append(el('div', { class: 'presets', role: 'group', 'aria-label': 'Presets' }, PRESETS.map((preset) => this.#preset(preset))));
    root.append(el('div', { class: 'field-grid' }, SAMPLING_FIELDS.map((field) => this.#number(field))));
    root.append(this.#box('stop', 'Stop texts', { rows: 2, placeholder: 'One per line; \\n is a line break' }));
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

  /** What each field is when it is left empty, where that is known. */
  showDefaults(defaults) {
    for (const { name } of SAMPLING_FIELDS) this.inputs[name].placeholder = defaults[name] ?? 'default';
  }

  #preset({ label, values }) {
    const choose = () => {
      const others = Object.entries(this.values).filter(([name]) => !PRESET_FIELDS.includes(name));
      this.values = { ...Object.fromEntries(others), ...values };
      this.onChange();
    };
    return el('button', { type: 'button', onclick: choose }, label);
  }

  /** The first field that cannot be sent, or null; the user is taken there. */
  findProblem() {
    const wrong = Object.values(this.inputs).find((input) => !this.#check(input));
    wrong?.focus();
    return wrong ? wrong.validationMessage : null;
  }

  #number({ name, label, hint, ...limits }) {
    const input = el('input', { type: 'number', inputmode: 'decimal', placeholder: 'default', ...limits, step: 'any' });
    if (limits.step === 1) input.step = 1;
    return this.#field(name, label, input, hint);
  }

  #box(name, label, { isJson = false, ...attributes }) {
    return this.#field(name, label, el('textarea', { spellcheck: 'false', class: isJson ? 'mono' : null, 'data-json': isJson, ...attributes }));
  }

  #field(name, label, input, hint = '') {
    input.id = `${this.prefix}-${name}`;
    this.inputs[name] = input;
    const note = el('span', { class: 'field-error', id: `${input.id}-error` });
    const help = el('small', { class: 'field-hint', id: `${input.id}-hint` }, hint);
    input.setAttribute('aria-describedby', `${note.id} ${help.id}`);
    input.addEventListener('input', () => {
      this.#check(input);
      this.onChange();
    });
    return el('div', { class: 'field' }, el('label', { for: input.id }, label), input, note, help);
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
    byId(`${input.id}-error`)?.replaceChildren(input.validationMessage);
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
