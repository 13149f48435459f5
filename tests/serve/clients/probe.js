// Uses the page as a person does, and writes what it found into it.
const found = {};
const until = async (what) => {
  for (let i = 0; i < 400 && !what(); i += 1) await new Promise((go) => setTimeout(go, 25));
  if (!what()) throw new Error(`waited for ${what}`);
};
const answers = () => [...document.querySelectorAll("article.assistant .content")].map((each) => each.textContent);
const idle = () => document.getElementById("stop").hidden;
const press = (where, text) => [...where.querySelectorAll("button")].find((each) => each.textContent === text).click();
const send = (text) => {
  document.getElementById("text").value = text;
  document.getElementById("text").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
};
window.confirm = () => true;
window.addEventListener("securitypolicyviolation", (event) => { found.forbidden = event.violatedDirective; });
(async () => {
  try {
    await until(() => document.getElementById("model").textContent === "tiny");
    state.settings = { temperature: "0", max_tokens: "4" };
    send("<b>a</b>");
    await until(() => answers().length === 1 && idle());
    found.first = answers()[0];
    found.note = document.querySelector("article.assistant .note").textContent;
    found.user = document.querySelector("article.user .content").textContent;
    press(document.querySelector("article.assistant"), "Retry");
    await until(() => idle() && answers().length === 1);
    found.retried = answers()[0];
    press(document.querySelector("article.user"), "Edit");
    document.querySelector("article textarea").value = "b";
    press(document.querySelector("article"), "Send");
    await until(() => idle() && answers().length === 1);
    found.edited = answers()[0];
    found.stored = JSON.parse(localStorage.getItem("camshaft")).conversations.map((each) => each.messages.map(({ role, content }) => ({ role, content })));
    send("x".repeat(100));
    await until(() => idle() && document.getElementById("alert").textContent);
    found.alert = document.getElementById("alert").textContent;
    document.getElementById("new").click();
    state.settings.max_tokens = "";
    send("b");
    document.getElementById("stop").click();
    await until(idle);
    found.status = document.getElementById("status").textContent;
    found.titles = [...document.querySelectorAll("nav .title")].map((each) => each.textContent);
    document.querySelector("nav li button:last-child").click();
    found.left = document.querySelectorAll("nav .title").length;
    document.getElementById("new").click();
    found.attach = document.getElementById("attach").hidden;
    const drawn = Object.assign(document.createElement("canvas"), { width: 3000, height: 1500 });
    const chosen = new DataTransfer();
    chosen.items.add(new File([await new Promise((go) => drawn.toBlob(go))], "drawn.png"));
    chosen.items.add(new File(["none"], "text.txt"));
    document.getElementById("files").files = chosen.files;
    document.getElementById("files").dispatchEvent(new Event("change"));
    await until(() => document.querySelector("#images img") && document.getElementById("alert").textContent);
    found.unread = document.getElementById("alert").textContent;
    const drawnAgain = new Image();
    drawnAgain.src = document.querySelector("#images img").src;
    await drawnAgain.decode();
    found.size = [drawnAgain.width, drawnAgain.height];
    send("what is it?");
    await until(() => idle() && document.getElementById("alert").textContent);
    found.refused = document.getElementById("alert").textContent;
    found.images = [document.querySelectorAll("article.user img").length, document.querySelectorAll("#images img").length];
    const several = document.getElementById("models");
    found.models = [...several.options].map((each) => each.value);
    several.value = "other";
    several.dispatchEvent(new Event("change"));
    found.chosen = JSON.parse(localStorage.getItem("camshaft")).model;
    found.unnamed = [...document.querySelectorAll("button, input, textarea, select")].filter((each) =>
      !each.textContent.trim() && !each.getAttribute("aria-label") && !(each.labels && each.labels.length)).length;
  } catch (error) {
    found.error = String(error);
  }
  document.body.append(Object.assign(document.createElement("pre"), { id: "probed", textContent: JSON.stringify(found) }));
  fetch("done");
})();
