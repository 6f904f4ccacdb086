package kernelspace

import (
	"errors"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Failure is a write of a load balancer that failed, with the labels of kube-proxy's metrics.
type Failure struct {
	Op     string // create, update or delete
	Family route.Family
	Kind   string // clusterip, nodeport, externalip, ingressip or healthcheck
	Reason string // network_not_found, port_already_exists, not_implemented, invalid_ip or other
}

func failureOf(s *step, err error) Failure {
	f := Failure{Op: [...]string{"create", "update", "delete", "delete"}[s.Op], Family: s.Key.family, Kind: string(s.New.kind), Reason: reasonOf(err)}
	if s.Op == ledger.Remove {
		f.Kind = string(guess(s.Key, s.Old))
	}
	return f
}

// reasonOf returns the label of an error in metrics. A missing endpoint or load balancer has no label of its own.
func reasonOf(err error) string {
	for _, r := range []struct {
		is   error
		name string
	}{
		{hns.ErrNoNetwork, "network_not_found"},
		{hns.ErrPortExists, "port_already_exists"},
		{hns.ErrNotImplemented, "not_implemented"},
		{hns.ErrInvalidIP, "invalid_ip"},
	} {
		if errors.Is(err, r.is) {
			return r.name
		}
	}
	return "other"
}

// guess returns the kind of a load balancer, or the probable kind if an earlier run created it.
func guess(k key, v value) kind {
	switch {
	case v.kind != "":
		return v.kind
	case !k.addr.IsValid():
		return ofNodePort
	case v.flags.External:
		return ofIngressIP
	}
	return ofClusterIP
}
