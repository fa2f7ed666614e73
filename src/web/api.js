/* Requests to the server, with the key of whoever sits here. Keys go in headers, never in URLs. */
import {$, h, kept, t, translatePage} from "./base.js";

export class ApiError extends Error {
  constructor(status, message, retryAfter, param) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
    this.param = param;
  }
}

/* In words for people. */
export function inWords(error) {
  if (!(error instanceof ApiError)) return t("err.network");
  if (error.status === 429) return t("err.429", {n: error.retryAfter || 1});
  if ([401, 403, 404, 503].includes(error.status)) return t(`err.${error.status}`);
  return t("err.other", {message: error.message});
}

/* ---- The key ---- */

export const key = () => kept.get("key", sessionStorage) ?? kept.get("key");

function setKey(value, keep) {
  kept.set("key", value, sessionStorage);
  kept.set("key", keep ? value : null);
}

let asking = null;

/* Asks for a key, an admin's maybe; wrong: the last one was not known. Resolves to true once one was
 * given, false when it was refused. One dialog at a time, whoever asks. */
export function askKey({admin = false, wrong = false} = {}) {
  asking ??= new Promise((resolve) => {
    const input = h("input", {type: "password", id: "key-input", autocomplete: "current-password",
      required: true, spellcheck: "false"});
    const keep = h("input", {type: "checkbox"});
    keep.checked = kept.get("key") !== null;
    const dialog = h("dialog", {class: "ask", "aria-labelledby": "key-title"},
      h("form", {method: "dialog"},
        h("h2", {id: "key-title", "data-t": "key.title"}),
        h("p", {"data-t": admin ? "key.admin" : "key.text"}),
        wrong ? h("p", {class: "bad", "data-t": "key.wrong"}) : null,
        h("label", {for: "key-input", "data-t": "key.label"}), input,
        h("label", {class: "check"}, keep, h("span", {"data-t": "key.keep"})),
        h("p", {class: "buttons"},
          h("button", {type: "button", onclick: () => dialog.close(), "data-t": "key.cancel"}),
          h("button", {class: "main", "data-t": "key.ok"}))));
    let given = false;
    dialog.addEventListener("submit", () => {
      given = true;
      setKey(input.value.trim(), keep.checked);
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      asking = null;
      resolve(given);
    });
    document.body.append(dialog);
    translatePage(dialog);
    dialog.showModal();
    input.focus();
  });
  return asking;
}

/* ---- Requests ---- */

function headers(body, extra) {
  const all = {...extra};
  if (key()) all.Authorization = `Bearer ${key()}`;
  if (body !== undefined) all["Content-Type"] = "application/json";
  return all;
}

async function errorOf(response) {
  let said = null;
  try { said = (await response.json()).error; } catch { /* no JSON: the status says it */ }
  const message = typeof said === "string" ? said : said?.message ?? response.statusText;
  return new ApiError(response.status, message, Number(response.headers.get("Retry-After")) || 0,
    said?.param);
}

/* A response whose status is 2xx; everything else is thrown. 401 asks for a key and tries again. */
export async function send(method, path, {body, signal, extra, quiet} = {}) {
  for (;;) {
    const response = await fetch(path, {method, signal, cache: "no-store",
      headers: headers(body, extra), body: body === undefined ? undefined : JSON.stringify(body)});
    if (response.ok) return response;
    if (response.status === 401 && !quiet && await askKey({wrong: Boolean(key())})) continue;
    throw await errorOf(response);
  }
}

export const getJson = async (path, options) => (await send("GET", path, options)).json();

let paths = null; /* of this server's API */

/* null where the server has no such thing, or nothing to say. A page that asked for what is not there
 * would fill the browser's console with errors: the API's own description is read first. */
export async function getIfThere(path) {
  try {
    paths ??= (await getJson("/openapi.json", {quiet: true})).paths;
    if (!(path.split("?")[0] in paths)) return null;
    return await getJson(path, {quiet: true});
  } catch (error) {
    if (error instanceof ApiError && [403, 404, 405, 503].includes(error.status)) return null;
    throw error;
  }
}

/* Reads server-sent events; onEvent(name, text) for each. Ends with the stream. */
export async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length > 0) onEvent(name, data.join("\n"));
    }
  }
}

/* POST to a request's or a job's action; says what went wrong beside the button. */
export async function act(button, path, after) {
  button.disabled = true;
  try {
    await send("POST", path, {body: {}});
    after?.();
  } catch (error) {
    const note = $("#action-note");
    if (note) note.textContent = t("act.failed", {message: inWords(error)});
  } finally {
    button.disabled = false;
  }
}
