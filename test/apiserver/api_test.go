//go:build linux

package apiserver

import (
	"testing"
)

// TestAPIServer starts one API server for all tests.
func TestAPIServer(t *testing.T) {
	c := Start(t)
	for _, test := range []struct {
		name string
		run  func(*testEnv)
	}{
		{"S-222 S-225 changes reach the kernel", testChanges},
		{"S-230 types", testTypes},
		{"S-227 S-228 S-229 ExternalName", testExternalName},
		{"S-236 S-237 other proxy", testProxyName},
		{"S-238 headless slices", testHeadlessLabel},
		{"S-239 headless Service", testHeadless},
		{"kinds of Services", testServiceKinds},
		{"several slices", testSeveralSlices},
		{"S-312 ServiceCIDR objects", testServiceCIDRs},
		{"S-178 zone of the Node", testZone},
		{"addresses of the Node", testNodeAddress},
		{"nothing is written before everything is listed", testSlowLists},
		{"explain knows the pods of this node by their names", testPodNames},
		{"a server without ServiceCIDRs", testNoServiceCIDRs},
		{"S-275 S-276 the API server stops and starts", testServerDown},
		{"S-276 changes while disconnected", testDisconnected},
		{"S-274 restart", testRestart},
		{"latency", testLatency},
		{"the program", testProgram},
		{"Events", testEvents},
		{"Events are forbidden", testEventsForbidden},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(newTestEnv(t, c)) })
	}
}
