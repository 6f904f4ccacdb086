package convert

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The annotation says how endpoints learn the addresses of clients. Any other value is a problem, and is ignored.
func TestProxyHeader(t *testing.T) {
	problem := func(value string) []string {
		return []string{
			"Service default/web: metadata.annotations[sluice-proxy.github.io/client-address]: " + value +
				": ignored: expected proxy-protocol",
		}
	}
	for _, c := range []struct {
		value    string
		want     bool
		problems []string
	}{
		{"", false, nil},
		{"proxy-protocol", true, nil},
		{"Proxy-Protocol", false, problem("Proxy-Protocol")},
		{"proxy-protocol,transparent", false, problem("proxy-protocol,transparent")},
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationClients: c.value},
			},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
		}
		got, problems := (&Converter{}).Service(svc)
		var texts []string
		for _, p := range problems {
			texts = append(texts, p.String())
		}
		if got.ProxyHeader != c.want || !slices.Equal(texts, c.problems) {
			t.Errorf("%q: %v, problems %q, want %v, %q", c.value, got.ProxyHeader, texts, c.want, c.problems)
		}
	}
}
