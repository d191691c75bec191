// Trades the token for a cookie: from the address's fragment (which no server ever sees) or from the form.

const said = document.getElementById("said");

async function enter(token) {
  said.textContent = "";
  let answer;
  try {
    answer = await fetch("/login", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token }),
    });
  } catch {
    said.textContent = "The coordinator does not answer.";
    return;
  }
  if (answer.ok) {
    location.replace("/");
  } else {
    said.textContent = answer.status === 401 ? "That is not the token." : `Refused (${answer.status}).`;
  }
}

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  history.replaceState(null, "", "/login"); // out of the address bar and the history
  enter(given);
}

document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(document.getElementById("token").value.trim());
});
