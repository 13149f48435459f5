"use strict";
// The OpenAPI file as a page: each address with the fields of its requests. Text is only ever set as text, never as HTML.

function element(name, fields = {}, ...children) {
  const made = Object.assign(document.createElement(name), fields);
  made.append(...children);
  return made;
}

// What a field may be, in words.
function kind(schema) {
  if (schema.anyOf) return [...new Set(schema.anyOf.map(kind))].filter((each) => each !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.type === "array") return `list of ${schema.items ? kind(schema.items) : "anything"}`;
  const { minimum, maximum } = schema;
  const range = minimum === undefined && maximum === undefined ? "" : `, ${minimum ?? "any"} to ${maximum ?? "any"}`;
  return (schema.type || "anything") + range;
}

function fields(schema) {
  const needed = schema.required || [];
  const head = element("tr", {}, ...["field", "kind", "meaning"].map((each) => element("th", { scope: "col", textContent: each })));
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => element("tr", {},
    element("th", { scope: "row" }, element("code", { textContent: name }), needed.includes(name) ? " (needed)" : ""),
    element("td", { textContent: kind(field) }), element("td", { textContent: field.description || "" })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
}

function address(path, method, operation) {
  const title = element("summary", {}, element("code", { textContent: `${method.toUpperCase()} ${path}` }), ` ${operation.summary}`);
  const parts = Object.entries(operation.requestBody?.content || {}).map(([type, body]) =>
    element("div", {}, element("p", { textContent: `A body of type ${type}:` }), fields(body.schema)));
  const answers = Object.entries(operation.responses).map(([status, each]) => `${status} (${each.description})`).join(", ");
  return element("details", {}, title, ...parts, element("p", { textContent: `Answers: ${answers}` }));
}

function headers() {
  try {
    const { key } = JSON.parse(localStorage.getItem("camshaft")).settings;
    return key ? { Authorization: `Bearer ${key}` } : {};
  } catch {
    return {}; // the chat page has kept nothing
  }
}

async function show() {
  const response = await fetch("openapi.json", { headers: headers() });
  if (response.status === 401) throw new Error("an API key is missing or wrong: set it in the settings of the chat page");
  if (!response.ok) throw new Error(`status ${response.status}`);
  const { paths } = await response.json();
  document.getElementById("addresses").replaceChildren(...Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => address(path, method, operation))));
}

show().catch((error) => { document.getElementById("alert").textContent = error.message; })
  .finally(() => document.getElementById("addresses").setAttribute("aria-busy", "false"));
