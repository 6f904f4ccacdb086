package route

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestServicesThatOthersNeedComeFirst(t *testing.T) {
	table := &Table{Services: map[cluster.Name]*Service{}}
	for name, port := range map[string]uint16{
		"a/dns": 53, "a/web": 80, "default/kubernetes": 443, "kube-system/metrics": 443, "kube-system/z-dns": 53,
	} {
		namespace, base, _ := strings.Cut(name, "/")
		n := cluster.Name{Namespace: namespace, Name: base}
		table.Services[n] = &Service{Name: n, Ports: []Port{{Frontends: []Frontend{{Port: port}}}}}
	}
	table.Services[cluster.Name{Namespace: "a", Name: "ignored"}] = &Service{
		Name: cluster.Name{Namespace: "a", Name: "ignored"},
	}
	var got []string
	for _, n := range table.Order() {
		got = append(got, n.String())
	}
	want := []string{"default/kubernetes", "kube-system/z-dns", "a/dns", "a/ignored", "a/web", "kube-system/metrics"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
