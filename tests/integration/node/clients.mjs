// The clients of OpenAI and of Ollama for Node against the scripted server (scripted.py), whose
// address is the argument. Prints the name of each client that passed.
import assert from 'node:assert/strict'
import { Ollama } from 'ollama'
import OpenAI from 'openai'

const url = process.argv[2]
const PLAIN = 'Hello! 안녕 \u{1f600}'
const WEATHER = 'It rains in Seoul.'
const RESULT = 'rain, 12 degrees'
const tool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  }
}
const schema = {
  type: 'object',
  properties: { title: { type: 'string' }, tags: { type: 'array', items: { type: 'string' } } },
  required: ['title', 'tags'],
  additionalProperties: false
}
const DOCUMENT = { title: 'Rain', tags: ['weather', 'seoul'] }
const user = (content) => ({ role: 'user', content })

async function openai () {
  const ai = new OpenAI({ baseURL: url + '/v1', apiKey: 'none', maxRetries: 0 })
  const create = (messages, more) => ai.chat.completions.create({ model: 'fake', messages, ...more })

  assert.equal((await create([user('greet me')])).choices[0].message.content, PLAIN)
  let text = ''
  for await (const chunk of await create([user('greet me')], { stream: true })) {
    text += chunk.choices[0].delta.content ?? ''
  }
  assert.equal(text, PLAIN)

  const messages = [user('weather in Seoul?')]
  const first = (await create(messages, { tools: [tool] })).choices[0].message
  assert.deepEqual(JSON.parse(first.tool_calls[0].function.arguments), { city: 'Seoul' })
  messages.push(first, { role: 'tool', tool_call_id: first.tool_calls[0].id, content: RESULT })
  assert.equal((await create(messages, { tools: [tool] })).choices[0].message.content, WEATHER)
  const stream = ai.chat.completions.stream({ model: 'fake', messages: [user('weather in both?')], tools: [tool] })
  const calls = (await stream.finalMessage()).tool_calls
  assert.deepEqual(calls.map((c) => JSON.parse(c.function.arguments).city), ['Seoul', 'Paris'])

  const format = { type: 'json_schema', json_schema: { name: 'doc', schema, strict: true } }
  const written = (await create([user('as JSON')], { response_format: format })).choices[0]
  assert.deepEqual(JSON.parse(written.message.content), DOCUMENT)

  assert.equal((await ai.responses.create({ model: 'fake', input: 'greet me' })).output_text, PLAIN)
  assert.equal((await ai.models.list()).data[0].id, 'fake')

  // base64 on the wire, numbers here
  const vectors = (await ai.embeddings.create({ model: 'fake', input: ['one', 'two'], dimensions: 4 })).data
  assert.deepEqual(vectors.map((d) => d.embedding.length), [4, 4])
  assert.ok(Math.abs(Math.hypot(...vectors[1].embedding) - 1) < 1e-6)
  await assert.rejects(create([user('x')], { temperature: -1 }), (e) => e.status === 400 && e.param === 'temperature')
}

async function ollama () {
  const client = new Ollama({ host: url })
  const chat = (messages, more) => client.chat({ model: 'fake', messages, ...more })

  assert.equal((await chat([user('greet me')])).message.content, PLAIN)
  let text = ''
  for await (const part of await chat([user('greet me')], { stream: true })) text += part.message.content
  assert.equal(text, PLAIN)

  const messages = [user('weather in Seoul?')]
  const first = (await chat(messages, { tools: [tool] })).message
  assert.deepEqual(first.tool_calls[0].function.arguments, { city: 'Seoul' })
  messages.push(first, { role: 'tool', tool_name: 'get_weather', content: RESULT })
  assert.equal((await chat(messages, { tools: [tool] })).message.content, WEATHER)
  const cities = []
  for await (const part of await chat([user('weather in both?')], { tools: [tool], stream: true })) {
    for (const call of part.message.tool_calls ?? []) cities.push(call.function.arguments.city)
  }
  assert.deepEqual(cities, ['Seoul', 'Paris'])

  assert.deepEqual(JSON.parse((await chat([user('as JSON')], { format: schema })).message.content), DOCUMENT)
  assert.deepEqual(JSON.parse((await client.generate({ model: 'fake', prompt: 'as JSON', format: 'json' })).response), DOCUMENT)

  assert.equal((await client.list()).models[0].model, 'fake:latest')
  assert.ok((await client.show({ model: 'fake' })).capabilities.includes('tools'))
  assert.equal((await client.ps()).models[0].name, 'fake:latest')

  const { embeddings } = await client.embed({ model: 'fake', input: ['one', 'two'] })
  const { embedding } = await client.embeddings({ model: 'fake', prompt: 'two' })
  assert.equal(embeddings.length, 2)
  assert.deepEqual(embeddings[1], embedding)

  const endless = await chat([user('long story')], { stream: true })
  await assert.rejects(async () => {
    for await (const part of endless) if (part.message.content) endless.abort()
  }, { name: 'AbortError' })
  await assert.rejects(chat([user('x')], { options: { top_p: 9 } }), (e) => e.status_code === 400)
}

for (const test of [openai, ollama]) {
  await test()
  console.log(test.name)
}
