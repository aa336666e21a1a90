// The pages work without this script. It filters comparisons, suggests codes and follows streams.
const token = () => document.querySelector("input[name=csrf_token]")?.value ?? "";

// The builder of a search: comparisons that the parameter has, and values that the data has.
const builder = document.querySelector("form[data-suggest]");
if (builder) {
  const parameter = builder.elements.parameter, comparison = builder.elements.comparison, value = builder.elements.value;
  const list = document.getElementById(value.getAttribute("list"));
  const fit = () => {
    const type = parameter.selectedOptions[0]?.dataset.type ?? "";
    for (const option of comparison.options) {
      option.disabled = option.hidden = option.dataset.types !== undefined && !option.dataset.types.split(" ").includes(type);
    }
    if (comparison.selectedOptions[0]?.disabled) comparison.value = "";
  };
  let last = "", waits = 0;
  const suggest = async () => {
    const asked = parameter.value + "\n" + value.value;
    if (asked === last) return;
    last = asked;
    const answer = await fetch(builder.dataset.suggest, { method: "POST", body: new URLSearchParams({ csrf_token: token(), parameter: parameter.value, value: value.value }) });
    if (!answer.ok || asked !== last) return;
    list.replaceChildren(...(await answer.json()).map(({ value, label }) => Object.assign(document.createElement("option"), { value, label })));
  };
  const later = () => { clearTimeout(waits); waits = setTimeout(suggest, 150); };
  parameter.addEventListener("change", () => { fit(); list.replaceChildren(); later(); });
  value.addEventListener("input", later);
  value.addEventListener("focus", later);
  fit();
}

// Parts that change by themselves: the page is loaded again, and the part replaced.
for (const part of document.querySelectorAll("[data-refresh]")) {
  const seconds = Number(part.dataset.refresh);
  setInterval(async () => {
    if (document.hidden || part.contains(document.activeElement)) return;
    const answer = await fetch(location.href, { headers: { "X-Kiln-Live": "1" } });
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
    if (fresh) part.replaceChildren(...fresh.childNodes);
  }, seconds * 1000);
}

// Live events.
const log = document.querySelector("[data-stream]");
if (log) {
  const source = new EventSource(log.dataset.stream);
  source.addEventListener("line", e => {
    const item = document.createElement("div");
    item.textContent = e.data;
    log.prepend(item);
    while (log.children.length > 200) log.lastChild.remove();
  });
  source.addEventListener("end", () => source.close());
}
