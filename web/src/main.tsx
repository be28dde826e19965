import { render } from "preact";
import { App } from "./shell/app.tsx";
import "./chat/commands.ts";
import { start } from "./store.ts";
import "./styles/index.css";

// The request is sent first, so that the server responds while the page is rendered.
void start();
const root = document.getElementById("app");
if (root) render(<App />, root);
