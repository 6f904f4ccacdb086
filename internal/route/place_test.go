package route

import (
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Backends whose node is not known may be on this node, and are listed once more; the health check
// node port of a Service is in each of its ports.
func TestUnplacedAndHealthPort(t *testing.T) {
	svc := masqService(etpLocal, func(s *cluster.Service) { s.HealthCheckNodePort = 31000 })
	got := compileOne(t, Options{}, svc, sliceOf(svc, "x", endpoints(t, "10.180.0.1 @A\n10.180.1.1 @B\n198.18.0.1 @")))
	p := got.Ports[0]
	if fmt.Sprint(p.Here) != "[10.180.0.1 198.18.0.1]" ||
		fmt.Sprint(p.Unplaced) != "[198.18.0.1]" || p.HealthPort != 31000 {
		t.Errorf("here %v, unplaced %v, health check node port %d", p.Here, p.Unplaced, p.HealthPort)
	}
}
