package config

import "sigs.k8s.io/yaml"

// Effective returns the configuration in force, defaults and flags included, as
// a KubeProxyConfiguration v1alpha1 in JSON.
func (c *Config) Effective() ([]byte, error) { return yaml.YAMLToJSON(c.effective) }

// Values returns every flag of the command line with its value, also those that
// were not given. It leaves out those that only older versions of kube-proxy had:
// they may carry passwords for cAdvisor.
func (f *Flags) Values() map[string]string {
	values := map[string]string{}
	for _, group := range current() {
		for _, def := range group.flags {
			values[def.name] = def.initial
			if text, ok := f.given[def.name]; ok {
				values[def.name] = text
			}
		}
	}
	return values
}
