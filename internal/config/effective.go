package config

import "sigs.k8s.io/yaml"

// Effective returns the configuration in force, defaults and flags included, as
// a KubeProxyConfiguration v1alpha1 in JSON.
func (c *Config) Effective() []byte {
	text, _ := yaml.YAMLToJSON(c.effective) // Load wrote it
	return text
}

// Values returns every flag with its value or default. It leaves out the flags that only
// older versions of kube-proxy had, because they may contain passwords for cAdvisor.
func (f *Flags) Values() map[string]string {
	values := map[string]string{}
	for _, group := range Groups() {
		for _, def := range group.defs {
			values[def.name] = def.initial
			if text, ok := f.values[def.name]; ok {
				values[def.name] = text
			}
		}
	}
	return values
}
