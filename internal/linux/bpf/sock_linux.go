package bpf

import (
	"bytes"
	_ "embed" // sockObject
	"fmt"

	"github.com/cilium/ebpf"
)

//go:generate ../../../hack/bpf.sh

// sockObject is the compiled sock.c. It has little-endian byte order; loadSock fails on other processors.
//
//go:embed sock_bpfel.o
var sockObject []byte

// loadSock reads the programs and maps of sock.c.
func loadSock() (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(sockObject))
	if err != nil {
		return nil, fmt.Errorf("read the compiled programs: %w", err)
	}
	return spec, nil
}

// The names of maps in sock.c that Table does not have.
const (
	sockMapBackends    = "backend_counts"
	sockMapClients     = "clients"
	sockMapCounts      = "counts"
	sockMapDurations   = "durations"
	sockMapExempt      = "exempt"
	sockMapGeneration  = "generation"
	sockMapLoads       = "loads"
	sockMapNewBackends = "new_backends"
	sockMapUDPReplies  = "udp_replies"
	sockMapUDPSockets  = "udp_sockets"
)
