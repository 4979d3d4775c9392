'use strict';
// A request as curl and as Python, to take along.

class CodeDialog {
  constructor(api) {
    this.api = api;
    this.dialog = byId('code-dialog');
    this.text = byId('code-text');
    this.language = 'curl';
    byId('code-copy').append(copyButton(() => this.text.textContent));
    byId('code-close').addEventListener('click', () => this.dialog.close());
    for (const language of ['curl', 'python']) {
      byId(`code-${language}`).addEventListener('click', () => this.#show(language));
    }
  }

  open(path, body) {
    this.path = path;
    this.body = body;
    this.#show(this.language);
    this.dialog.showModal();
  }

  #show(language) {
    this.language = language;
    for (const each of ['curl', 'python']) byId(`code-${each}`).setAttribute('aria-pressed', each === language);
    const url = this.api.url(this.path);
    const hasKey = Boolean(this.api.key.value);
    this.text.textContent = language === 'curl' ? curlOf(url, this.body, hasKey) : pythonOf(this.api.url('v1'), this.path, this.body, hasKey);
  }
}

function curlOf(url, body, hasKey) {
  const key = hasKey ? " \\\n  -H \"Authorization: Bearer $API_KEY\"" : '';
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -N ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${json}'\n`;
}

// What OpenAI's SDK takes as arguments; everything else goes into extra_body.
const SDK_ARGUMENTS = new Set(
  ('model messages prompt stream temperature top_p max_tokens seed stop presence_penalty frequency_penalty response_format tools ' +
    'logprobs echo n reasoning_effort').split(' '),
);

function pythonOf(baseUrl, path, body, hasKey) {
  const isChat = path.endsWith('chat/completions');
  const own = {};
  const lines = [];
  for (const [name, value] of Object.entries(body)) {
    if (name === 'stream_options') continue;
    const isKnown = SDK_ARGUMENTS.has(name) && (isChat || name !== 'response_format');
    if (isKnown) lines.push(`    ${name}=${pythonLiteral(value, 1)},`);
    else own[name] = value;
  }
  if (Object.keys(own).length) lines.push(`    extra_body=${pythonLiteral(own, 1)},`);
  const text = isChat ? 'chunk.choices[0].delta.content' : 'chunk.choices[0].text';
  const ending = body.stream
    ? `for chunk in stream:\n    print(${text} or "", end="", flush=True)\n`
    : `print(answer.choices[0].${isChat ? 'message.content' : 'text'})\n`;
  const key = hasKey ? 'os.environ["API_KEY"]' : '"none"';
  return [
    ...(hasKey ? ['import os', ''] : []),
    'from openai import OpenAI',
    '',
    `client = OpenAI(base_url=${pythonLiteral(baseUrl)}, api_key=${key})`,
    `${body.stream ? 'stream' : 'answer'} = client.${isChat ? 'chat.completions' : 'completions'}.create(`,
    ...lines,
    ')',
    ending,
  ].join('\n');
}

function pythonLiteral(value, depth = 0) {
  if (value === null) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (typeof value !== 'object') return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  const items = Array.isArray(value)
    ? value.map((each) => pythonLiteral(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonLiteral(each, depth + 1)}`);
  const line = `${open}${items.join(', ')}${close}`;
  if (line.length + 4 * depth < 80 && !line.includes('\n')) return line;
  const indent = '    '.repeat(depth);
  return `${open}\n${items.map((item) => `${indent}    ${item},\n`).join('')}${indent}${close}`;
}
