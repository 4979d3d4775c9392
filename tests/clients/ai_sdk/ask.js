// `node ask.js URL PROVIDER STORY`: one of the stories below, of which what came is printed as JSON.

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const MODEL = 'jetflock-demo';
const [url, providerName, story] = process.argv.slice(2);
const given = { name: 'jetflock', baseURL: url, apiKey: 'none' };
const providers = {
  compatible: () => createOpenAICompatible({ ...given, includeUsage: true, supportsStructuredOutputs: true }),
  openai: () => createOpenAI(given).chat,
  responses: () => createOpenAI(given).responses,
  anthropic: () => createAnthropic(given),
};
const model = providers[providerName]()(MODEL);
const asked = { model, temperature: 0, maxOutputTokens: 300, maxRetries: 0 };
const forecast = tool({
  description: 'The weather of the next days.',
  inputSchema: z.object({ days: z.enum(['one', 'two']) }).strict(),
  execute: ({ days }) => `rain for ${days}`,
});
const pet = Output.object({ schema: z.object({ kind: z.enum(['cat', 'dog']) }).strict() });
const fail = ({ error }) => {
  throw error;
};

const stories = {
  async chat() {
    const whole = await generateText({ ...asked, prompt: 'Hello! Who are you?' });
    const stream = streamText({ ...asked, prompt: 'Hello! Who are you?', onError: fail });
    const parts = [];
    for await (const part of stream.textStream) parts.push(part);
    return { whole: whole.text, parts, usage: await stream.usage, reason: await stream.finishReason };
  },
  async tool() {
    const wanted = { ...asked, prompt: 'Will it rain?', tools: { forecast }, toolChoice: 'required' };
    const stream = streamText({ ...wanted, stopWhen: stepCountIs(1), onError: fail });
    const [call] = await stream.toolCalls;
    const told = [{ role: 'user', content: 'Will it rain?' }, ...(await stream.response).messages];
    const again = await generateText({ ...asked, tools: { forecast }, toolChoice: 'none', messages: told });
    return { call, results: await stream.toolResults, again: again.text };
  },
  async object() {
    const whole = await generateText({ ...asked, prompt: 'Tell me of a cat.', output: pet });
    const stream = streamText({ ...asked, prompt: 'Tell me of a cat.', output: pet, onError: fail });
    const seen = [];
    for await (const partial of stream.partialOutputStream) seen.push(partial);
    return { whole: whole.output, seen };
  },
  async vectors() {
    const made = createOpenAICompatible(given).embeddingModel(MODEL);
    const { embeddings } = await embedMany({ model: made, values: ['a cat', 'a dog'] });
    return { lengths: embeddings.map((each) => each.length) };
  },
};

console.log(JSON.stringify(await stories[story]()));
