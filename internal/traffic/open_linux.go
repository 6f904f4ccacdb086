package traffic

import "github.com/sluice-proxy/sluice/internal/linux/conntrack"

// Open opens the conntrack table of a network namespace, by its file descriptor; 0: the current one.
func Open(netns int) (Table, error) { return conntrack.Open(netns) }
