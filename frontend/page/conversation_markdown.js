'use strict';
// A conversation as a Markdown text, to be read elsewhere.

function markdownOf({ title, messages }) {
  return [`# ${title || 'Untitled'}`, ...messages.map(messageMarkdown)].join('\n\n') + '\n';
}

function messageMarkdown(message) {
  const name = { user: 'You', tool: `Result of ${message.name ?? message.callId}` }[message.role] ?? message.model ?? 'Answer';
  const pictures = (message.pictures ?? []).map(() => '*(a picture)*');
  const calls = (message.toolCalls ?? []).map((call) => `Calls \u0060${call.name}\u0060:\n\n${fenced(call.arguments, 'json')}`);
  return [`## ${name}`, ...pictures, message.content, ...calls].filter(Boolean).join('\n\n');
}

/** Between fences that are longer than any inside. */
function fenced(text, language) {
  const longest = Math.max(2, ...(text.match(/\u0060+/g) ?? []).map((run) => run.length));
  const fence = '\u0060'.repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}
