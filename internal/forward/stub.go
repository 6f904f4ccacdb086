package forward

import "net/netip"

type settings struct {
	balancer *Balancer
	admit    func(netip.Addr) Admission
}

func (s *settings) admission(client netip.Addr) Admission {
	if s.admit == nil {
		return Admission{}
	}
	return s.admit(client)
}

const (
	reasonFlows  = "flows"
	reasonFiles  = "file descriptors"
	reasonPorts  = "ports"
	reasonMemory = "memory"
)
