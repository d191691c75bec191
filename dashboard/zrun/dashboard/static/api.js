// Asking the coordinator. A lost session leads to the login page; everything else that fails gives null.

export async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { headers: { accept: "application/json" } });
  } catch {
    return null;
  }
  if (answer.status === 401) location.replace("/login");
  return answer.ok ? answer.json() : null;
}
