package manifest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"
)

// The problem of a value of a wrong type has its path and its text.
func TestUndecodable(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"a list's element", `{"spec":{"ports":[{"port":80},{"port":"80"}]}}`, `o: spec.ports[1].port: "80": wrong type: expected a whole number that fits int32`},
		{"a number that is too large", `{"spec":{"ports":[{"port":99999999999}]}}`, `o: spec.ports[0].port: 99999999999: wrong type: expected a whole number that fits int32`},
		{"a fraction", `{"spec":{"healthCheckNodePort":1.5}}`, `o: spec.healthCheckNodePort: 1.5: wrong type: expected a whole number that fits int32`},
		{"an object for a list", `{"spec":{"ports":{"port":80}}}`, `o: spec.ports: {"port":80}: wrong type: expected a list`},
		{"a list for a string", `{"spec":{"clusterIP":["a"]}}`, `o: spec.clusterIP: ["a"]: wrong type: expected a string`},
		{"a string in a list", `{"spec":{"clusterIPs":["a",7]}}`, `o: spec.clusterIPs[1]: 7: wrong type: expected a string`},
		{"a map's value", `{"spec":{"selector":{"a.b/c":"x","on":true}}}`, `o: spec.selector[on]: true: wrong type: expected a string`},
		{"behind a pointer", `{"spec":{"allocateLoadBalancerNodePorts":"no"}}`, `o: spec.allocateLoadBalancerNodePorts: "no": wrong type: expected true or false`},
		{"a number or a string", `{"spec":{"ports":[{"targetPort":[1]}]}}`, `o: spec.ports[0].targetPort: [1]: wrong type: expected a whole number that fits int32, or a string`},
		{"a time", `{"metadata":{"deletionTimestamp":"x"}}`, `o: metadata.deletionTimestamp: "x": wrong type: expected a time like 2006-01-02T15:04:05Z`},
		{"a field of the type it is in", `{"kind":1}`, `o: kind: 1: wrong type: expected a string`},
		{"all of it", `[1]`, `o: [1]: wrong type: expected an object`},
		{"several", `{"spec":{"type":1},"metadata":{"name":2}}`, `o: metadata.name: 2: wrong type: expected a string`},
		{"a long value", `{"spec":{"type":["` + strings.Repeat("x", 100) + `"]}}`, `o: spec.type: ["` + strings.Repeat("x", 62) + `...: wrong type: expected a string`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o corev1.Service
			err := json.UnmarshalCaseSensitivePreserveInts([]byte(tc.text), &o)
			if err == nil {
				t.Fatal("the object was decoded")
			}
			if got := undecodable("o", []byte(tc.text), &o, err).String(); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}
