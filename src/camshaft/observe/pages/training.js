// The page of a training run: figures, curves over steps, memory by kind.
const data = JSON.parse(byId("data").textContent);
const run = data.columns;

function summary() {
  const count = run.step.length, losses = run.loss.filter((v) => v !== null), tokens = run.tokens.reduce((a, b) => a + b, 0);
  const seconds = run.seconds.reduce((a, b) => a + b, 0), mean = running(losses, window20());
  const validations = run.validation.map((v, i) => [v, run.step[i]]).filter(([v]) => v !== null);
  const best = validations.reduce((low, one) => low && low[0] <= one[0] ? low : one, null);
  const figures = [
    [losses.length ? number(mean[mean.length - 1], 4) : "–", losses.length ? `loss now, of ${number(losses[0], 4)} at first` : "no loss yet"],
    [`${count.toLocaleString("en")} / ${data.steps.toLocaleString("en")}`, "steps done"],
    [number(seconds ? tokens / seconds : 0) + " /s", `tokens; ${tokens.toLocaleString("en")} in all`],
    [clock(seconds), "in steps"],
    [bytes(Object.values(data.memory).reduce((a, b) => a + b, 0)), "of memory"],
  ];
  if (best) figures.splice(1, 0, [number(best[0], 4), `lowest validation loss, after step ${best[1]}`]);
  showTiles(figures);
}

function clock(seconds) {
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  return `${Math.floor(whole / 3600) ? Math.floor(whole / 3600) + ":" : ""}${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function window20() { return Math.max(1, Math.floor(run.step.length / 20)); }

function drawAll() {
  const [training, validation] = COLOURS, series = [
    { name: "loss", values: run.loss, colour: training, kind: "faint" },
    { name: "running mean", values: running(run.loss, window20()), colour: training, kind: "line" },
  ];
  const marks = [[training, "training"]];
  if (run.validation.some((v) => v !== null)) {
    series.push({ name: "validation", values: run.validation, colour: validation, kind: "dots" });
    marks.push([validation, "validation"]);
  }
  summary();
  drawCurves("loss", run.step, series, { log: byId("log").checked });
  drawLegend("loss-legend", marks);
  const one = (name, values, colour) => [{ name, values, colour, kind: "line" }];
  drawCurves("rate", run.step, one("rate", run.lr, COLOURS[2]), { zero: true });
  drawCurves("norm", run.step, one("norm", run.gradient_norm, COLOURS[3]), { zero: true, limit: data.clip });
  const rates = run.tokens.map((n, i) => run.seconds[i] ? n / run.seconds[i] : null);
  drawCurves("speed", run.step, one("tokens/s", rates, COLOURS[4]), { zero: true });
  const parts = Object.entries(data.memory).map(([name, value], i) => ({ name, value, colour: COLOURS[i] }));
  drawParts("memory", parts, bytes);
  drawLegend("memory-legend", parts.map((part) => [part.colour, `${part.name} ${bytes(part.value)}`]));
}

byId("log").onchange = drawAll;
drawAll();
let waiting = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); });
