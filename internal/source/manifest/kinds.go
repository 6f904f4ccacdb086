package manifest

import (
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
)

// unknownKind returns the problem of an object of a kind that is not read. It returns
// none unless the kind looks like a misspelling of one that is.
func (h header) unknownKind(kind string) []route.Problem {
	group, _ := h.groupVersion()
	meant := meantKind(kind)
	t, ok := traitOf(meant)
	if !ok || !isOfTheAPI(group) || group != t.group && meant != kind {
		return nil
	}
	p := route.Problem{Object: strings.TrimSpace(h.Kind + " " + h.Metadata.Name)}
	if meant == kind {
		p.Field, p.Value = "apiVersion", h.APIVersion
		p.Reason = "the group has no such kind, so the object is not read; expected " + t.apiVersion()
		return []route.Problem{p}
	}
	p.Field, p.Value = "kind", h.Kind
	p.Reason = "there is no such kind, so the object is not read; meant is probably " + meant + strings.TrimPrefix(h.Kind, kind)
	return []route.Problem{p}
}

// apiVersion returns the preferred version of a kind.
func (t trait) apiVersion() string { return strings.TrimPrefix(t.group+"/"+t.versions[0], "/") }

// isOfTheAPI reports whether a group belongs to Kubernetes itself.
func isOfTheAPI(group string) bool {
	return group == "" || group == "discovery.k8s.io" || group == "networking.k8s.io"
}

// meantKind returns the supported kind that was probably meant; empty if there is
// none. No other kind of their groups is spelled as similarly.
func meantKind(kind string) string {
	kinds := []string{kindService, kindEndpointSlice, kindEndpoints, kindNode, kindServiceCIDR, kindPod}
	if slices.Contains(kinds, kind) {
		return kind
	}
	for _, k := range kinds {
		if distance(strings.ToLower(kind), strings.ToLower(k)) <= min(2, len(k)/3) {
			return k
		}
	}
	return ""
}

// distance returns the number of letters to insert, delete or replace to turn one
// word into another.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // to make the first j letters of b of those of a seen so far
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0] // of the row above, one to the left
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}
