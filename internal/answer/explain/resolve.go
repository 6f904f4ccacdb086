package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// resolve adds to the question the namespaces that it lacks, and finds the addresses of the client. The notes are for
// people.
func (a *asker) resolve() (notes []string, err error) {
	q := &a.question
	if q.Service.Name != "" && q.Service.Namespace == "" {
		if notes, err = a.resolveService(); err != nil {
			return nil, err
		}
	}
	switch {
	case q.Source.IsValid():
		a.sources = []netip.Addr{q.Source}
	case q.Pod.Name != "":
		err = a.resolvePod()
	}
	return notes, err
}

func (a *asker) resolveService() (notes []string, err error) {
	q := &a.question
	var known []cluster.Name
	for svc := range a.view.Routes.Services() {
		if svc.Name.Name == q.Service.Name {
			known = append(known, svc.Name)
		}
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("there is no Service %s in any namespace%s", q.Service.Name, a.similar())
	}
	found, others, err := named("Service", known)
	if len(others) > 0 {
		notes = []string{"there is also " + few(text.Strings(others))}
	}
	q.Service = found
	return notes, err
}

// resolvePod finds the addresses of a pod, to which the destination has to fit.
func (a *asker) resolvePod() (err error) {
	q := &a.question
	var known []cluster.Name
	addrs := map[cluster.Name][]netip.Addr{}
	for pod, addr := range a.view.Routes.Pods() {
		if pod.Name != q.Pod.Name || q.Pod.Namespace != "" && pod.Namespace != q.Pod.Namespace {
			continue
		}
		known = append(known, pod)
		if !slices.Contains(addrs[pod], addr) {
			addrs[pod] = append(addrs[pod], addr)
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("the address of pod %s is not known: no Service selects it, or it runs on another node, "+
			"whose Sluice serves it; give its IP address as the source", nameText(q.Pod))
	}
	if q.Pod, _, err = named("pod", known); err != nil {
		return err
	}
	a.sources = addrs[q.Pod]
	if to := q.Destination; to.IsValid() && a.source(to).Is4() != to.Is4() {
		return fmt.Errorf("pod %s has no %s address that Sluice knows, only %s", q.Pod, route.FamilyOf(to),
			text.Join(a.sources, ", "))
	}
	return nil
}

// named returns which of the objects of a name is meant without a namespace: the one in the namespace default, as for
// kubectl, or else the only one. Others are those that it may be mistaken for.
func named(kind string, all []cluster.Name) (found cluster.Name, others []cluster.Name, err error) {
	slices.SortFunc(all, cluster.Name.Compare)
	all = slices.Compact(all)
	i := slices.IndexFunc(all, func(n cluster.Name) bool { return n.Namespace == "default" })
	if i < 0 && len(all) > 1 {
		return cluster.Name{Name: all[0].Name}, nil, fmt.Errorf("there are %d %ss called %s: give one of %s", len(all),
			kind, all[0].Name, few(text.Strings(all)))
	}
	found = all[max(i, 0)]
	return found, slices.DeleteFunc(all, func(n cluster.Name) bool { return n == found }), nil
}
