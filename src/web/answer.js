/* One answer from the server: streams it, times it, and says what went wrong. Nothing of the page. */
import {ApiError, readEvents, send} from "./api.js";

/* `ahead=3, predicted_ttft_ms=420` as numbers. */
function dictionary(text) {
  return Object.fromEntries((text ?? "").split(",").map((x) => x.trim().split("=")).map(([k, v]) => [k, Number(v)]));
}

/*
 * on: {begun(answer), text(answer)}, called as it grows. The answer:
 *   content, thoughts   text so far
 *   id, cls, queue      of the headers: request, class given, {ahead, predicted_ttft_ms}
 *   ttft_ms, tokens, tps, cut   when it is complete; ttft_ms as this page felt it
 * Throws an ApiError, the network's error, or AbortError; what came until then stays in `answer`.
 */
export async function ask({body, extra, signal, answer, on}) {
  const began = performance.now();
  const response = await send("POST", "/v1/chat/completions", {signal, extra,
    body: {...body, stream: true, stream_options: {include_usage: true}}});
  answer.id = response.headers.get("X-Request-Id") ?? "";
  answer.cls = response.headers.get("X-Gamasot-Class") ?? "";
  answer.queue = dictionary(response.headers.get("X-Gamasot-Queue"));
  on.begun(answer);
  let first = 0, done = false;
  await readEvents(response, (_name, text) => {
    if (text === "[DONE]") {
      done = true;
      return;
    }
    const event = JSON.parse(text);
    if (event.error) throw new ApiError(event.error.code ?? 500, event.error.message, 0);
    answer.id ||= event.id;
    const choice = event.choices?.[0];
    const piece = choice?.delta?.content ?? "", thought = choice?.delta?.reasoning_content ?? "";
    if (piece || thought) {
      first ||= performance.now();
      answer.last = performance.now();
      answer.ttft_ms ??= first - began;
      answer.content += piece;
      answer.thoughts += thought;
      on.text(answer);
    }
    if (choice?.finish_reason === "length") answer.cut = true;
    if (event.usage) answer.tokens = event.usage.completion_tokens;
  });
  if (!done) throw new Error("the stream ended early");
  if (answer.tokens > 1 && answer.last > first) answer.tps = (answer.tokens - 1) * 1000 / (answer.last - first);
}
