package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// largeService returns a Service with n ports and n external IPs.
func largeService(n int) *corev1.Service {
	return service(func(svc *corev1.Service) {
		svc.Spec.Ports, svc.Spec.ExternalIPs = nil, nil
		for i := range n {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1 + i)})
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs,
				netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}).String())
		}
	})
}

func TestUniqueKeepsTheFirstOfEach(t *testing.T) {
	var list, want []int
	for i := range 1000 {
		v := i * 7 % 100
		list = append(list, v)
		if !slices.Contains(want, v) {
			want = append(want, v)
		}
	}
	if got := unique(list); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Of ports with the same name or number, the first one is used, at any position.
func TestDuplicatePorts(t *testing.T) {
	svc := largeService(1000)
	again := svc.Spec.Ports[500]
	other := corev1.ServicePort{Name: "p3", Port: 5} // clashes with p3 by name and with p4 by number
	third := corev1.ServicePort{Name: "p5", Port: 4}
	svc.Spec.Ports = append(svc.Spec.Ports, again, other, third)
	out, problems := Converter{}.Service(svc)
	var got []string
	for _, p := range problems {
		got = append(got, p.Field+": "+p.Reason)
	}
	want := []string{
		"spec.ports[1000]: another port of the Service has the same name and protocol",
		"spec.ports[1001]: another port of the Service has the same name and protocol",
		"spec.ports[1002]: another port of the Service has the same name and protocol",
	}
	if !slices.Equal(got, want) || len(out.Ports) != 1000 {
		t.Errorf("%d ports; got\n%q\nwant\n%q", len(out.Ports), got, want)
	}
}

// The same problem of very many values of one object is reported a few times, with a count.
func TestSimilarProblemsAreCounted(t *testing.T) {
	svc := service(func(svc *corev1.Service) {
		for i := range 10_000 {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprint("x", i))
		}
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, "169.254.1.1")
	})
	_, problems := Converter{AllowExternalIPs: true}.Service(svc)
	var got []string
	for _, p := range problems {
		got = append(got, fmt.Sprint(p, " ", p.Count))
	}
	const line = "Service default/web: spec.externalIPs[%d]: x%d: not an IP address"
	want := []string{
		fmt.Sprintf(line+" 0", 0, 0), fmt.Sprintf(line+" 0", 1, 1), fmt.Sprintf(line+" (and 9997 more like it) 9998", 2, 2),
		"Service default/web: spec.externalIPs[10000]: 169.254.1.1: a link-local address cannot be used 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// BenchmarkLargeService converts a Service with very many ports and addresses. The time
// for each must not depend on their number.
func BenchmarkLargeService(b *testing.B) {
	for _, n := range []int{4096, 16384, 65535} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			svc := largeService(n)
			var out *cluster.Service
			for b.Loop() {
				out, _ = Converter{AllowExternalIPs: true}.Service(svc)
			}
			if len(out.Ports) != n || len(out.ExternalIPs) != n {
				b.Fatalf("%d ports, %d external IPs, want %d of each", len(out.Ports), len(out.ExternalIPs), n)
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(n), "ns/each")
		})
	}
}
