package health

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Refusal is how many Services have rules that the kernel refuses.
type Refusal struct {
	Services int
	Of       int          // all Services
	Vital    cluster.Name // one of them without which a node does not work; zero: none of them is
}

// Grave reports whether new connections should go to another node: the kernel refuses more than half of the Services,
// the Service of the API server, or a Service of DNS.
func (r Refusal) Grave() bool { return 2*r.Services > r.Of || r.Vital != cluster.Name{} }

// String describes the refusal; empty: there is none.
func (r Refusal) String() string {
	switch {
	case r.Services == 0:
		return ""
	case r.Vital != cluster.Name{}:
		return fmt.Sprintf("the kernel refuses the rules of %d of %d Services, Service %s among them", r.Services, r.Of,
			r.Vital)
	}
	return fmt.Sprintf("the kernel refuses the rules of %d of %d Services", r.Services, r.Of)
}
