package fair

// Budget divides file descriptors between the connections of servers and the listeners of health check node ports.
type Budget struct {
	Health, Metrics, Control int // connections of these servers
	PortClients              int // connections of all health check node ports
	Ports                    int // listeners of health check node ports
}

// reserve is the number of file descriptors for everything else: some 20 are always open (netlink, conntrack, inotify,
// the API server, listeners), a write by a program needs 8, a comparison 6.
const reserve = 40

// Split divides the file descriptors that a process may have (RLIMIT_NOFILE) and that the data plane does not need.
func Split(limit int) Budget {
	spare := max(limit-reserve, 0)
	b := Budget{
		Health:      min(max(spare/3, 4), 256),
		Metrics:     min(max(spare/6, 2), 64),
		Control:     min(max(spare/6, 2), 32),
		PortClients: min(max(spare/6, 2), 256),
	}
	b.Ports = max(spare-b.Health-b.Metrics-b.Control-b.PortClients, 2)
	return b
}
