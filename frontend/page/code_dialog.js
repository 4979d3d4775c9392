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
    'logprobs echo n reasoning_effort store').split(' '),
);
const ONLY_OF_CHATS = new Set(['response_format', 'store']);

function pythonOf(baseUrl, path, body, hasKey) {
  return path.endsWith('/fork') ? pythonOfFork(baseUrl, path, body, hasKey) : pythonOfCompletion(baseUrl, path, body, hasKey);
}

function pythonOfCompletion(baseUrl, path, body, hasKey) {
  const isChat = path.endsWith('chat/completions');
  const own = {};
  const lines = [];
  for (const [name, value] of Object.entries(body)) {
    if (name === 'stream_options') continue;
    const isKnown = SDK_ARGUMENTS.has(name) && (isChat || !ONLY_OF_CHATS.has(name));
    if (isKnown) lines.push(`    ${name}=${pythonLiteral(value, 1)},`);
    else own[name] = value;
  }
  if (Object.keys(own).length) lines.push(`    extra_body=${pythonLiteral(own, 1)},`);
  const text = isChat ? 'chunk.choices[0].delta.content' : 'chunk.choices[0].text';
  const ending = body.stream
    ? `for chunk in stream:\n    print(${text} or "", end="", flush=True)\n`
    : `print(answer.choices[0].${isChat ? 'message.content' : 'text'})\n`;
  return [
    ...pythonClient(baseUrl, hasKey, ['from openai import OpenAI']),
    `${body.stream ? 'stream' : 'answer'} = client.${isChat ? 'chat.completions' : 'completions'}.create(`,
    ...lines,
    ')',
    ending,
  ].join('\n');
}

/** Of a chat; OpenAI's SDK has no method for it. */
function pythonOfFork(baseUrl, path, body, hasKey) {
  const imports = ['from openai import OpenAI, Stream', 'from openai.types.chat import ChatCompletionChunk'];
  return [
    ...pythonClient(baseUrl, hasKey, imports),
    'stream = client.post(',
    `    ${pythonLiteral(path.replace(/^v1/, ''))},`,
    `    body=${pythonLiteral(body, 1)},`,
    '    cast_to=ChatCompletionChunk,',
    '    stream=True,',
    '    stream_cls=Stream[ChatCompletionChunk],',
    ')',
    'for chunk in stream:\n    for choice in chunk.choices:\n        print(choice.delta.content or "", end="", flush=True)\n',
  ].join('\n');
}

function pythonClient(baseUrl, hasKey, imports) {
  const key = hasKey ? 'os.environ["API_KEY"]' : '"none"';
  return [...(hasKey ? ['import os', ''] : []), ...imports, '', `client = OpenAI(base_url=${pythonLiteral(baseUrl)}, api_key=${key})`];
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
