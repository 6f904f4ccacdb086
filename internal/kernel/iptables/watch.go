package iptables

// lost is what an edit says of which nothing is known.
const lost = "notifications were lost"
