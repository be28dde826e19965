import { render } from "preact";
import "./chat/commands.ts";
import { App } from "./shell/app.tsx";
import { start } from "./store.ts";
import "./styles/index.css";

const place = document.getElementById("app");
if (place) render(<App />, place);
void start();
