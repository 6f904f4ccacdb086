package strict

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// Every fault has the path, the text and the type of the value.
func TestDecode(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"no fault", `{"metadata":{"name":"a"},"spec":{"ports":[{"port":80}]}}`, nil},
		{"a list's element", `{"spec":{"ports":[{"port":80},{"port":"80"}]}}`, []string{`spec.ports[1].port: "80": int32`}},
		{
			"a number that is too large", `{"spec":{"ports":[{"port":99999999999}]}}`,
			[]string{"spec.ports[0].port: 99999999999: int32"},
		},
		{"a fraction", `{"spec":{"healthCheckNodePort":1.5}}`, []string{"spec.healthCheckNodePort: 1.5: int32"}},
		{"an object for a list", `{"spec":{"ports":{"port":80}}}`, []string{`spec.ports: {"port":80}: []v1.ServicePort`}},
		{"a string in a list", `{"spec":{"clusterIPs":["a",7]}}`, []string{"spec.clusterIPs[1]: 7: string"}},
		{"a map's value", `{"spec":{"selector":{"a.b/c":"x","on":true}}}`, []string{"spec.selector.on: true: string"}},
		{
			"behind a pointer", `{"spec":{"allocateLoadBalancerNodePorts":"no"}}`,
			[]string{`spec.allocateLoadBalancerNodePorts: "no": bool`},
		},
		{
			"a type with its own decoder", `{"spec":{"ports":[{"targetPort":[1]}]}}`,
			[]string{"spec.ports[0].targetPort: [1]: intstr.IntOrString"},
		},
		{"a time", `{"metadata":{"deletionTimestamp":"x"}}`, []string{`metadata.deletionTimestamp: "x": v1.Time`}},
		{"a field of a part without a name", `{"kind":1}`, []string{"kind: 1: string"}},
		{"all of it", `[1]`, []string{"[1]: v1.Service"}},
		{
			"several", `{"spec":{"type":1},"metadata":{"name":2}}`,
			[]string{"metadata.name: 2: string", "spec.type: 1: v1.ServiceType"},
		},
		{
			"an unknown field and a repeated one", `{"spec":{"colour":1,"type":"a","type":"b"}}`,
			[]string{"spec.colour unknown", "spec.type repeated"},
		},
		{"repeated in a map", `{"spec":{"selector":{"a.b":"1","a.b":"2"}}}`, []string{"spec.selector.a.b repeated"}},
		{"unknown in a list", `{"spec":{"ports":[{},{"colour":1}]}}`, []string{"spec.ports[1].colour unknown"}},
		{"all at once", `{"spec":{"type":1,"colour":1}}`, []string{"spec.type: 1: v1.ServiceType", "spec.colour unknown"}},
		{"no field with the name of one further inside", `{"name":5}`, []string{"name unknown"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, f := range Decode([]byte(tc.text), new(corev1.Service)) {
				switch {
				case f.IsUnknown():
					got = append(got, f.Path+" unknown")
				case f.Want == nil && !f.IsUnknown():
					got = append(got, f.Path+" repeated")
				case f.Path == "":
					got = append(got, fmt.Sprintf("%s: %v", f.Value, f.Want))
				default:
					got = append(got, fmt.Sprintf("%s: %s: %v", f.Path, f.Value, f.Want))
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Fields without a fault are decoded.
func TestDecodeTheRest(t *testing.T) {
	var o corev1.Service
	Decode([]byte(`{"metadata":{"deletionTimestamp":"x","name":"a"},"spec":{"type":1,"clusterIPs":["a",7],`+
		`"ports":[{"port":"x","nodePort":5}]}}`), &o)
	want := corev1.Service{}
	want.Name, want.Spec.ClusterIPs, want.Spec.Ports = "a", []string{"a", ""}, []corev1.ServicePort{{NodePort: 5}}
	if d := cmp.Diff(want, o); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A field has its line, even in a list, behind an alias, or in JSON with tabs.
func TestFind(t *testing.T) {
	const doc = "# c\na: &x\n  b:\n  - c: 1\n  - {c: 2,\n     d: 3}\ne.f: *x\n"
	for _, tc := range []struct {
		text, path string
		line       int
		found      bool
	}{
		{doc, "", 2, true},
		{doc, "a", 2, true},
		{doc, "a.b", 3, true},
		{doc, "a.b[0].c", 4, true},
		{doc, "a.b[1].d", 6, true},
		{doc, "a.b[1].none.x", 5, false},
		{doc, "e.f", 7, true},
		{doc, "e.f.b[0]", 4, true},
		{"a: null\n", "a", 1, false},
		{doc, "none", 2, false},
		{"{\n\t\"a\": {\n\t\t\"b\": 1}}", "a.b", 3, true},
		{"{\n\ta", "a", 1, false},
		{"", "a", 1, false},
	} {
		if line, found := NewLines([]byte(tc.text)).Find(tc.path); line != tc.line || found != tc.found {
			t.Errorf("%q: line %d, %v; want %d, %v", tc.path, line, found, tc.line, tc.found)
		}
	}
}
