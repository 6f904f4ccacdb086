package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// A kind that is probably a misspelling of a supported kind is reported; others are
// ignored.
func TestMisspelledKinds(t *testing.T) {
	mistyped := func(kind, meant string) string {
		return fmt.Sprintf("f: line 2: %s x: kind: %s: there is no such kind, so the object is not read; did you mean %s?", kind, kind, meant)
	}
	for _, tc := range []struct{ apiVersion, kind, want string }{
		{"v1", "Servic", mistyped("Servic", "Service")},
		{"v1", "service", mistyped("service", "Service")},
		{"v1", "Sevrice", mistyped("Sevrice", "Service")},
		{"v1", "Endpoint", mistyped("Endpoint", "Endpoints")},
		{"v1", "Pods", mistyped("Pods", "Pod")},
		{"v1", "Nodes", mistyped("Nodes", "Node")},
		{"v1", "ServicesList", mistyped("ServicesList", "ServiceList")},
		{"discovery.k8s.io/v1", "EndpointSlices", mistyped("EndpointSlices", "EndpointSlice")},
		{"discovery.k8s.io/v1", "EndpointsSlice", mistyped("EndpointsSlice", "EndpointSlice")},
		{"networking.k8s.io/v1", "ServiceCDIR", mistyped("ServiceCDIR", "ServiceCIDR")},
		{"v1", "EndpointSlice", "f: line 1: EndpointSlice x: apiVersion: v1: the group has no such kind, so the object is not read; expected discovery.k8s.io/v1"},
		{"networking.k8s.io/v1", "Service", "f: line 1: Service x: apiVersion: networking.k8s.io/v1: the group has no such kind, so the object is not read; expected v1"},
		{"serving.knative.dev/v1", "Service", ""},
		{"serving.knative.dev/v1", "Servic", ""},
		{"metrics.k8s.io/v1beta1", "PodMetrics", ""},
		{"v1", "Widget", ""},
	} {
		t.Run(tc.apiVersion+" "+tc.kind, func(t *testing.T) {
			text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x}\n", tc.apiVersion, tc.kind)
			c := parse(text)
			got := problemsOf(c)
			if strings.Join(got, "\n") != tc.want || len(c.objects) > 0 || c.isBroken {
				t.Errorf("got  %q\nwant %q\nobjects %v, broken %v", got, tc.want, c.objects, c.isBroken)
			}
		})
	}
}

// No other kind of Kubernetes is reported as a misspelling.
func TestOtherKindsAreNotMisspelled(t *testing.T) {
	for kind := range strings.FieldsSeq(`Binding ComponentStatus ConfigMap Event LimitRange Namespace PersistentVolume
		PersistentVolumeClaim PodTemplate ReplicationController ResourceQuota Secret ServiceAccount Status List
		Ingress IngressClass IPAddress NetworkPolicy`) {
		if meant := meantKind(kind); meant != "" {
			t.Errorf("%s is reported as %s", kind, meant)
		}
	}
}
