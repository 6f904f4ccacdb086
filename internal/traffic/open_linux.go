package traffic

import "github.com/sluice-proxy/sluice/internal/linux/conntrack"

// Open opens the conntrack table of a network namespace, by its file descriptor; 0: the current one. A nil Table means
// that this system has none.
func Open(netns int) (Table, error) {
	table, err := conntrack.Open(netns)
	if err != nil {
		return nil, err
	}
	return table, nil
}
