package plane

// Direct is what a node knows of the others to which it passes connections of clients outside on (route.Port.Owners).
type Direct struct {
	Ports    int    `json:"ports"`           // for which it does
	Checksum string `json:"checksum"`        // nodes with the same one agree about the owners of all of them
	Peers    []Peer `json:"peers,omitempty"` // sorted by name and family
}

// Peer is another node in one family.
type Peer struct {
	Node   string `json:"node"`
	Family string `json:"family"`
	Why    string `json:"why,omitempty"` // nothing can be passed on to it; empty: it can
}
