// Runs once, where a link brought the token: the cookie is kept now, so the token leaves the address; the rest stays.
const query = new URLSearchParams(location.search);
query.delete("token");
location.replace(`/${query.size > 0 ? `?${query}` : ""}${location.hash}`);
