package route

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Many Services in one change are compiled in parallel. Tables, changes and problems are the same as if each had
// arrived alone; some Services contest an address, one is too large and one is deleted.
func TestCompilingInParallel(t *testing.T) {
	opt := benchOptions()
	opt.Excess = func(s *Service) (size, limit string) {
		if s.Name.Name == "svc-000007" {
			return "1", "too much"
		}
		return "", ""
	}
	const n = block + 10*portion + 1
	all := load(n)
	for i := range all.Services {
		if i%100 == 1 {
			svc := *all.Services[i].Service
			svc.ClusterIPs = all.Services[i-1].Service.ClusterIPs
			all.Services[i].Service = &svc
		}
	}
	gone := cluster.Delta{Services: []cluster.State{{Name: all.Services[3].Name}}}

	together, alone := NewCompiler(opt), NewCompiler(opt)
	change, problems := together.Compile(all)
	if len(change.Touched) != n || len(problems) != n/100+2 {
		t.Errorf("%d touched, %d problems, want %d and %d", len(change.Touched), len(problems), n, n/100+2)
	}
	var one []Problem
	facts := all.Facts
	for i := range all.Services {
		_, more := alone.Compile(cluster.Delta{Facts: facts, Services: all.Services[i : i+1]})
		one, facts = append(one, more...), nil
	}
	together.Compile(gone)
	alone.Compile(gone)
	if d := cmp.Diff(one, problems); d != "" {
		t.Errorf("problems alone and together differ:\n%s", d)
	}
	if len(together.Table().Services) != n-1 {
		t.Errorf("the table has %d Services, want %d", len(together.Table().Services), n-1)
	}
	for name, svc := range alone.Table().Services {
		if !svc.equal(together.Table().Services[name]) {
			t.Fatalf("%v differs: alone %+v, together %+v", name, svc, together.Table().Services[name])
		}
	}
}
