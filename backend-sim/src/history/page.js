"use strict";
const tip = document.getElementById("tip");
const told = (target) => target.closest && target.closest("[data-t]");
const related = (element) =>
  element.dataset.m ? document.querySelectorAll(`[data-m="${element.dataset.m}"]`) : [element];
let shown = [];
const hide = () => { shown.forEach((e) => e.classList.remove("on")); shown = []; tip.style.display = "none"; };
document.addEventListener("mouseover", (event) => {
  hide();
  const element = told(event.target);
  if (!element) return;
  shown = [...related(element)];
  shown.forEach((e) => e.classList.add("on"));
  tip.textContent = element.dataset.t;
  tip.style.display = "block";
});
document.addEventListener("mousemove", (event) => {
  const { offsetWidth: w, offsetHeight: h } = tip;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - w - 8)) + "px";
  tip.style.top = (event.clientY + 18 + h > innerHeight ? event.clientY - h - 10 : event.clientY + 18) + "px";
});
const overview = document.querySelector(".overview");
overview.addEventListener("click", (event) => {
  const box = overview.getBoundingClientRect(), { left, width, end } = overview.dataset;
  const at = (event.clientX - box.left - left) / width * end;
  const rows = [...document.querySelectorAll(".row")];
  const row = rows.find((r) => Number(r.dataset.at) >= at) || rows[rows.length - 1];
  if (row) row.scrollIntoView({ block: "center", behavior: "smooth" });
});
// For whoever looks at the page without eyes: what of it has a size on the screen.
const drawn = (query) => [...document.querySelectorAll(query)].filter((e) => {
  const { width, height } = e.getBoundingClientRect();
  return width > 0 || height > 0;
}).length;
document.documentElement.dataset.drawn =
  `rows ${drawn(".row")} arrows ${drawn(".msg")} bars ${drawn(".bar")} absences ${drawn(".gone")}`;
