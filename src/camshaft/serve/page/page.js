"use strict";
// A chat in one page. Conversations and settings are in this browser's storage; text is only ever set as text, never as HTML.

const STORED = "camshaft";
const NUMBERS = ["temperature", "top_p", "top_k", "seed", "max_tokens"];
const byId = (id) => document.getElementById(id);
const state = load();
let running = null; // the AbortController of the answer in progress
let model = null;
let seeing = []; // the models that are loaded and take images, and those of which nothing is known yet
let attached = []; // of the next message, as data: URLs
const MOST_SIDE = 1024; // pixels: encoders see no more, and storage has little room

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORED));
    if (stored && Array.isArray(stored.conversations) && stored.settings) return stored;
  } catch { /* nothing stored, or storage is off */ }
  return { conversations: [], current: null, settings: {} };
}

function save() {
  try {
    localStorage.setItem(STORED, JSON.stringify(state));
  } catch {
    fail("this browser has no room left to keep the conversations: delete some");
  }
}

function element(name, fields = {}, ...children) {
  const made = Object.assign(document.createElement(name), fields);
  made.append(...children);
  return made;
}

const current = () => state.conversations.find((each) => each.id === state.current);
const fail = (text) => { byId("alert").textContent = text; };
const say = (text) => { byId("status").textContent = text; };

function headers() {
  const given = { "Content-Type": "application/json" };
  if (state.settings.key) given.Authorization = `Bearer ${state.settings.key}`;
  return given;
}

// --- What is shown

function show() {
  const list = byId("conversations");
  list.replaceChildren(...state.conversations.map((each) => {
    const title = element("button", { type: "button", className: "title", textContent: each.title, onclick: () => choose(each.id) });
    if (each.id === state.current) title.setAttribute("aria-current", "true");
    const remove = element("button", { type: "button", textContent: "×", onclick: () => forget(each.id) });
    remove.setAttribute("aria-label", `Delete ${each.title}`);
    return element("li", {}, title, remove);
  }));
  const conversation = current();
  byId("log").replaceChildren(...(conversation ? conversation.messages.map((message, i) => article(message, i)) : []));
  byId("log").scrollTop = byId("log").scrollHeight;
}

function article(message, i) {
  const content = element("div", { className: "content" });
  const tools = element("div", { className: "tools" });
  const tool = (text, onclick) => tools.append(element("button", { type: "button", textContent: text, onclick }));
  const made = element("article", { className: message.role });
  if (message.role === "user") {
    const images = message.images || [];
    content.append(...images.map((src, n) => element("img", { src, alt: `Image ${n + 1}` })), message.content);
    tool("Edit", () => edit(made, message, i));
  } else {
    content.append(...told(message, false));
    tool("Retry", () => retry(i));
  }
  tool("Copy", () => navigator.clipboard.writeText(message.content).then(() => say("Copied"), (error) => fail(String(error))));
  tools.append(element("span", { className: "note", textContent: message.note || "" }));
  made.append(element("h2", { textContent: message.role === "user" ? "You" : "Answer" }), content, tools);
  return made;
}

// An answer, after its thoughts.
function told(message, open) {
  const parts = formatted(message.content);
  if (message.thought) parts.unshift(element("details", { open }, element("summary", { textContent: "Thoughts" }), ...formatted(message.thought)));
  return parts;
}

// Blocks of code between three backquotes, and paragraphs with `code` and **strong** text.
function formatted(text) {
  return text.split(/^```[^\n]*\n?/m).flatMap((part, i) => {
    if (i % 2) return [element("pre", {}, element("code", { textContent: part.replace(/\n$/, "") }))];
    return part.split(/\n{2,}/).filter((each) => each.trim()).map((each) => element("p", {}, ...inline(each.replace(/^\n+|\n+$/g, ""))));
  });
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`")) return element("code", { textContent: part.slice(1, -1) });
    if (part.length > 4 && part.startsWith("**")) return element("strong", { textContent: part.slice(2, -2) });
    return part;
  });
}

// --- Conversations

function choose(id) {
  if (running) return fail("stop the answer first");
  state.current = id;
  fail("");
  save();
  show();
  toggleMenu(false);
  byId("text").focus();
}

function begin() {
  choose(null);
}

function forget(id) {
  if (running) return fail("stop the answer first");
  const title = state.conversations.find((each) => each.id === id).title;
  if (!confirm(`Delete the conversation “${title}”?`)) return;
  state.conversations = state.conversations.filter((each) => each.id !== id);
  if (state.current === id) state.current = null;
  save();
  show();
}

function edit(where, message, i) {
  if (running) return fail("stop the answer first");
  const text = element("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1) });
  text.setAttribute("aria-label", "The message");
  const send = element("button", { type: "button", textContent: "Send", onclick: () => {
    if (!text.value.trim()) return;
    current().messages.splice(i);
    ask(text.value, message.images);
  } });
  const cancel = element("button", { type: "button", textContent: "Cancel", onclick: show });
  where.replaceChildren(text, element("div", { className: "tools" }, send, cancel));
  text.focus();
}

function retry(i) {
  if (running) return fail("stop the answer first");
  current().messages.splice(i);
  answer();
}

// --- Answers

function ask(text, images = []) {
  if (!current()) {
    const id = `${Date.now()}-${Math.random()}`;
    state.conversations.unshift({ id, title: text.trim().slice(0, 60), messages: [] });
    state.current = id;
  }
  current().messages.push(images.length ? { role: "user", content: text, images } : { role: "user", content: text });
  save();
  answer();
}

// A message as the server takes it.
function sent({ role, content, images }) {
  if (!images) return { role, content };
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...parts, { type: "text", text: content }] };
}

async function answer() {
  const conversation = current();
  const body = { model, messages: conversation.messages.map(sent), stream: true, stream_options: { include_usage: true } };
  if (state.settings.system) body.messages.unshift({ role: "system", content: state.settings.system });
  for (const name of NUMBERS) if (state.settings[name]) body[name] = Number(state.settings[name]);
  const message = { role: "assistant", content: "", note: "" };
  conversation.messages.push(message);
  running = new AbortController();
  fail("");
  say("Answering");
  show();
  busy(true);
  const shown = byId("log").lastElementChild;
  shown.setAttribute("aria-busy", "true");
  try {
    await stream(body, message, shown);
    say(`Answer: ${message.content}`);
  } catch (error) {
    if (running.signal.aborted) say("Stopped");
    else fail(error.message || String(error));
  }
  if (!message.content) conversation.messages.splice(conversation.messages.indexOf(message), 1);
  running = null;
  busy(false);
  save();
  show();
  byId("text").focus();
}

function busy(is) {
  byId("send").hidden = is;
  byId("stop").hidden = !is;
}

async function stream(body, message, shown) {
  const begun = performance.now();
  const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal });
  if (!response.ok) throw await problem(response);
  let first = 0;
  let pieces = 0;
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    const delta = event.choices[0]?.delta;
    const text = delta?.content || delta?.reasoning_content;
    if (text) {
      first ||= performance.now();
      pieces += 1;
      message.content += delta.content || "";
      message.thought = (message.thought || "") + (delta.reasoning_content || "");
      draw(message, shown);
    }
    if (pieces && (text || event.usage)) {
      const tokens = event.usage ? event.usage.completion_tokens : pieces;
      message.note = rate(tokens, first - begun, performance.now() - first, event.usage);
      shown.querySelector(".note").textContent = message.note;
    }
  }
}

function rate(tokens, first_ms, later_ms, usage) {
  const parts = [tokens === 1 ? "1 token" : `${tokens} tokens`];
  if (tokens > 1 && later_ms > 0) parts.push(`${(1000 * (tokens - 1) / later_ms).toFixed(1)} a second`);
  parts.push(`first after ${(first_ms / 1000).toFixed(2)} s`);
  const cached = usage?.prompt_tokens_details.cached_tokens;
  if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens reused`);
  return parts.join(", ");
}

function draw(message, shown) {
  const log = byId("log");
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  const content = shown.querySelector(".content");
  content.replaceChildren(...told(message, content.querySelector("details")?.open ?? true));
  if (follows) log.scrollTop = log.scrollHeight;
}

async function problem(response) {
  let text = `status ${response.status}`;
  try {
    text = (await response.json()).error.message;
  } catch { /* no JSON: the status says it */ }
  if (response.status === 401) byId("open-settings").click();
  return new Error(text);
}

// The data of server-sent events, up to the end mark.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      if (block === "data: [DONE]") return;
      yield JSON.parse(block.slice(6));
    }
  }
}

// --- Images

async function attach(files) {
  for (const file of files) {
    try {
      const read = await createImageBitmap(file);
      const scale = Math.min(1, MOST_SIDE / Math.max(read.width, read.height));
      const canvas = element("canvas", { width: Math.max(1, read.width * scale), height: Math.max(1, read.height * scale) });
      const context = canvas.getContext("2d");
      context.fillStyle = "white"; // behind what is transparent
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(read, 0, 0, canvas.width, canvas.height);
      attached.push(canvas.toDataURL("image/jpeg", 0.9));
    } catch {
      fail(`${file.name} is not an image that this browser reads`);
    }
  }
  showAttached();
}

function showAttached() {
  byId("images").replaceChildren(...attached.map((src, i) => {
    const remove = element("button", { type: "button", onclick: () => { attached.splice(i, 1); showAttached(); } }, element("img", { src, alt: "" }));
    remove.setAttribute("aria-label", `Remove image ${i + 1}`);
    return remove;
  }));
}

// --- Settings, menu, keys

function theme() {
  if (state.settings.theme) document.documentElement.dataset.theme = state.settings.theme;
  else delete document.documentElement.dataset.theme;
}

function openSettings() {
  const dialog = byId("settings");
  for (const field of dialog.querySelector("form").elements) if (field.name) field.value = state.settings[field.name] || "";
  dialog.returnValue = "cancel";
  if (!dialog.open) dialog.showModal();
}

function closeSettings() {
  const dialog = byId("settings");
  if (dialog.returnValue !== "save") return;
  for (const field of dialog.querySelector("form").elements) if (field.name) state.settings[field.name] = field.value;
  save();
  theme();
  findModel();
}

function toggleMenu(open) {
  byId("side").classList.toggle("open", open);
  byId("menu").setAttribute("aria-expanded", String(byId("side").classList.contains("open")));
}

async function findModel() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) throw await problem(response);
    const chats = (await response.json()).data.filter((each) => each.kind === "chat");
    const names = chats.map((each) => each.id);
    seeing = chats.filter((each) => each.input_modalities?.includes("image") ?? true).map((each) => each.id);
    const several = byId("models");
    several.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
    several.hidden = names.length < 2;
    byId("model").hidden = names.length > 1;
    useModel(names.includes(state.model) ? state.model : names[0] ?? "");
    fail("");
  } catch (error) {
    fail(error.message || String(error));
  }
}

function useModel(name) {
  model = name;
  byId("model").textContent = byId("models").value = name;
  byId("attach").hidden = !seeing.includes(name);
}

function grow() {
  const text = byId("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("text").value;
  if (running || !text.trim()) return;
  byId("text").value = "";
  grow();
  const images = attached;
  attached = [];
  showAttached();
  ask(text, images);
});
byId("attach").addEventListener("click", () => byId("files").click());
byId("files").addEventListener("change", async (event) => {
  await attach([...event.target.files]);
  event.target.value = "";
});
byId("text").addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
  if (!files.length || byId("attach").hidden) return;
  event.preventDefault();
  attach(files);
});
byId("text").addEventListener("input", grow);
byId("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && running) running.abort(); });
byId("models").addEventListener("change", (event) => {
  state.model = event.target.value;
  useModel(state.model);
  save();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new").addEventListener("click", begin);
byId("menu").addEventListener("click", () => toggleMenu());
byId("open-settings").addEventListener("click", openSettings);
byId("settings").addEventListener("close", closeSettings);
theme();
show();
findModel();
