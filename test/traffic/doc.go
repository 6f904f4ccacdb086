// Package traffic compares what planes count of the connections to Services with the backends that answered clients.
package traffic
