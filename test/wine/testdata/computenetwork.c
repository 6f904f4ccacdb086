/* The calls of HNS (computenetwork.h, and HNSCall of vmcompute.dll) that package hnslib makes for Sluice. Each is passed to
 * a server of the test, at port SERVER of 127.0.0.1: "NAME ID", a line feed and a document in UTF-8. The answer is an HRESULT
 * in hexadecimal, an ID, a line feed and a document. A handle is the text of an ID. */
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <objbase.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __declspec(dllexport) HRESULT WINAPI

/* wide returns a text that the caller frees by CoTaskMemFree. */
static WCHAR *wide(const char *text)
{
	int n = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
	WCHAR *w = CoTaskMemAlloc(n * sizeof *w);
	MultiByteToWideChar(CP_UTF8, 0, text, -1, w, n);
	return w;
}

static char *narrow(const WCHAR *text)
{
	int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
	char *s = malloc(n);
	WideCharToMultiByte(CP_UTF8, 0, text, -1, s, n, NULL, NULL);
	return s;
}

static void write_id(const GUID *g, char *text)
{
	sprintf(text, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", g->Data1, g->Data2, g->Data3, g->Data4[0], g->Data4[1],
		g->Data4[2], g->Data4[3], g->Data4[4], g->Data4[5], g->Data4[6], g->Data4[7]);
}

/* exchange sends a request and returns the answer, which the caller frees; NULL: there is no server. */
static char *exchange(const char *head, const char *document)
{
	WSADATA data;
	struct sockaddr_in to = {0};
	SOCKET s;
	char *answer = NULL;
	int size = 0, used = 0, n;

	if (WSAStartup(MAKEWORD(2, 2), &data)) return NULL;
	s = socket(AF_INET, SOCK_STREAM, 0);
	to.sin_family = AF_INET;
	to.sin_port = htons(SERVER);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (connect(s, (struct sockaddr *)&to, sizeof to)) {
		closesocket(s);
		return NULL;
	}
	send(s, head, strlen(head), 0);
	send(s, document, strlen(document), 0);
	shutdown(s, SD_SEND);
	do {
		if (size - used < 4096) answer = realloc(answer, size += 65536);
		n = recv(s, answer + used, size - used - 1, 0);
		if (n > 0) used += n;
	} while (n > 0);
	answer[used] = 0;
	closesocket(s);
	return answer;
}

/* call makes a call. Documents and handles are optional. Of a failure, result gets the document. */
static HRESULT call(const char *name, const char *id, const WCHAR *document, WCHAR **properties, char **handle, WCHAR **result)
{
	char head[256], *text = document ? narrow(document) : strdup(""), *answer, *body;
	char made[64] = "-";
	unsigned long hr = E_FAIL;

	if (result) *result = NULL;
	if (properties) *properties = NULL;
	sprintf(head, "%s %s\n", name, id ? id : "-");
	answer = exchange(head, text);
	free(text);
	if (!answer) return HRESULT_FROM_WIN32(ERROR_SERVICE_NOT_ACTIVE);
	body = strchr(answer, '\n');
	if (body && sscanf(answer, "%lx %63s", &hr, made) == 2) {
		body++;
		if (FAILED((HRESULT)hr)) {
			if (result) *result = wide(body);
		} else {
			if (properties) *properties = wide(body);
			if (handle) *handle = strdup(made);
		}
	}
	free(answer);
	return (HRESULT)hr;
}

#define OPEN(name) EXPORT name(const GUID *id, char **handle, WCHAR **result) \
{ char text[64]; write_id(id, text); return call(#name, text, NULL, NULL, handle, result); }
#define QUERY(name) EXPORT name(char *handle, const WCHAR *query, WCHAR **properties, WCHAR **result) \
{ return call(#name, handle, query, properties, NULL, result); }
#define ENUMERATE(name) EXPORT name(const WCHAR *query, WCHAR **ids, WCHAR **result) \
{ return call(#name, NULL, query, ids, NULL, result); }
#define DELETE_(name) EXPORT name(const GUID *id, WCHAR **result) \
{ char text[64]; write_id(id, text); return call(#name, text, NULL, NULL, NULL, result); }
#define CLOSE(name) EXPORT name(char *handle) { free(handle); return S_OK; }

ENUMERATE(HcnEnumerateNetworks)
OPEN(HcnOpenNetwork)
QUERY(HcnQueryNetworkProperties)
CLOSE(HcnCloseNetwork)

ENUMERATE(HcnEnumerateEndpoints)
OPEN(HcnOpenEndpoint)
QUERY(HcnQueryEndpointProperties)
DELETE_(HcnDeleteEndpoint)
CLOSE(HcnCloseEndpoint)

ENUMERATE(HcnEnumerateLoadBalancers)
OPEN(HcnOpenLoadBalancer)
QUERY(HcnQueryLoadBalancerProperties)
DELETE_(HcnDeleteLoadBalancer)
CLOSE(HcnCloseLoadBalancer)

EXPORT HcnCreateEndpoint(char *network, const GUID *id, const WCHAR *document, char **handle, WCHAR **result)
{
	return call("HcnCreateEndpoint", network, document, NULL, handle, result);
}

EXPORT HcnCreateLoadBalancer(const GUID *id, const WCHAR *document, char **handle, WCHAR **result)
{
	return call("HcnCreateLoadBalancer", NULL, document, NULL, handle, result);
}

EXPORT HcnModifyLoadBalancer(char *handle, const WCHAR *document, WCHAR **result)
{
	return call("HcnModifyLoadBalancer", handle, document, NULL, NULL, result);
}

EXPORT HNSCall(const WCHAR *method, const WCHAR *path, const WCHAR *object, WCHAR **response)
{
	if (wcscmp(path, L"/globals/version")) return E_NOTIMPL;
	return call("HNSCall", NULL, object, response, NULL, NULL);
}
